"""Packs: a cache as one signed file, which is verified and read group by group, without being unpacked.

May import the rooms up to explain. Lookups ask ``lower``; commands use ``archive``, by way of upkeep.
"""
