"""One compile for all who ask for the same thing: leases on cache keys, and waits for whoever holds one.

May import the rooms up to remote. ``scopes`` is what lookups and hooks call.
"""
