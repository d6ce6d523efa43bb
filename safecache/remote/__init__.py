"""The remote tier: a cache that hosts share through Redis, Valkey or an object store.

A feature: it may import the core, and no other feature. ``tier`` is what lookups call, by the port, and imports the
rest where there is a remote; commands and the doctor ask by the client, and ``parcels`` is what travels. ``hooks`` is
for the remote caches that are torch's and Triton's own.
"""
