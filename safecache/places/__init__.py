"""Paths and names of everything that torch, Triton and safecache cache.

May import the rooms up to files.
"""
