"""Settings: their table, parsers, and values in this process.

Imports nothing but errors.
"""
