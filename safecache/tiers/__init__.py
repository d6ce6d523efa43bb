"""Which directories a lookup goes through: a local level, the shared one, layers below, or a private one as a fallback.

May import the rooms up to loads.
"""
