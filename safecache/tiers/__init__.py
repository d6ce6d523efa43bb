"""Directories that a lookup searches in order: local tier, shared cache, lower tiers, private fallback.

May import the rooms up to loads.
"""
