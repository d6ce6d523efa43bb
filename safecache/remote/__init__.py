"""The remote tier: a cache that hosts share through Redis, Valkey or an object store, below all that is local.

May import the rooms up to explain. Lookups, and what makes something, call ``tier`` alone, which imports the rest where
there is a remote; commands and the doctor ask by the client, and ``parcels`` is what travels. ``theirs`` is for the
remote caches that are torch's and Triton's own.
"""
