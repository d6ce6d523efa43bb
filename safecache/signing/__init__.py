"""Keys and seals, and whether a sealed file may be trusted.

May import the packages up to places.
"""
