"""Paths and names of everything that torch, Triton and safecache cache.

May import the packages up to fs.
"""
