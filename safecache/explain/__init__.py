"""Why a lookup missed: what keys were made of, and what differs between two of them.

May import the rooms up to history.
"""
