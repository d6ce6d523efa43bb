"""Entries that torch looks up and saves: verify before unpickling, seal after pickling.

May import the packages up to store.
"""
