"""Bytes at rest: entry files, sealed records of other files, groups of files, and the quarantine.

May import the rooms up to tiers.
"""
