"""Entries that torch looks up and saves: verify before unpickling, seal after pickling.

May import the rooms up to store.
"""
