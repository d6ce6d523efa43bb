"""Why a lookup missed: what keys were made of, and what differs between two of them.

A feature: it may import the core, and no other feature.
"""
