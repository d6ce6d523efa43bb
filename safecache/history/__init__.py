"""What this process, and a run, has looked up: outcomes, and the journal of them.

May import the rooms up to store.
"""
