"""Triton's compiler in processes of its own: the client and its workers, what travels between them, and crashes.

May import the rooms up to upkeep.
"""
