"""One compile for all who ask for the same thing: leases on cache keys, and waits for whoever holds one.

A feature: it may import the core, and no other feature. ``scopes`` is what lookups and hooks call, by the port.
"""
