"""Caches as a person keeps them: listed, brought within limits, audited, adopted and signed.

May import the rooms up to patching.
"""
