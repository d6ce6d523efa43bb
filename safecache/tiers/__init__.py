"""Directories that a lookup searches in order: local tier, shared cache, lower tiers, private fallback.

May import the packages up to load_errors.
"""
