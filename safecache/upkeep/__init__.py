"""Maintenance of caches: list, trim, audit, adopt, re-seal and copy.

May import the packages up to patching.
"""
