"""Keys, the seal, and whether what is sealed may be trusted.

May import the rooms up to places.
"""
