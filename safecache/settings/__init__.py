"""The settings: their table, what their values mean, and as this process has them.

Imports nothing but errors.
"""
