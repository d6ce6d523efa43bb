"""Triton's compiler in processes of its own: the client and its workers, what travels between them, and crashes.

A feature: it may import the core, and no other feature.
"""
