"""Bytes at rest: entries, sealed records and the gate that verifies them, bundles from tiers, quarantine.

May import the packages up to tiers.
"""
