"""Code that torch, Triton and servers build and then load: verify it, or have it rebuilt.

May import the packages up to entries.
"""
