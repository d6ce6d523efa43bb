"""The remote tier: a cache that hosts share through Redis, Valkey or an object store, below all that is local.

May import the rooms up to explain. Of others it is ``tier`` that is called, where a lookup ends or something was made.
"""
