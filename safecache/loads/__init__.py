"""Loads and compiles that fail for what surrounds them: explained, with a remedy.

May import the rooms up to signing.
"""
