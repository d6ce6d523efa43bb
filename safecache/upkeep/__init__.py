"""Caches as a person keeps them: listed, brought within limits, audited, adopted, signed and packed.

May import the rooms up to patching.
"""
