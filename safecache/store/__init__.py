"""Bytes at rest: entries, sealed records and the gate that reads them, bundles from tiers, and the quarantine.

May import the rooms up to tiers.
"""
