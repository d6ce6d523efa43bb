"""What happened, and what follows from it: kinds, reasons, the policy, and the events that are counted and reported.

May import settings.
"""
