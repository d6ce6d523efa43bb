"""Kinds, reasons and the policy; count and report events.

May import settings.
"""
