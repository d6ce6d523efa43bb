"""Maintenance of caches: list, trim, audit, adopt, re-seal and copy.

May import the rooms up to patching.
"""
