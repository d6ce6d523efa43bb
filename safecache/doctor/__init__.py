"""What keeps caches from working on this machine: one module for each heading of the report.

May import the rooms up to isolation.
"""
