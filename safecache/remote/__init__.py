"""The remote tier: a cache that hosts share through Redis, Valkey or an object store, below all that is local.

May import the rooms up to explain. From above only ``tier`` is called: where a lookup ends, and where something was made.
"""
