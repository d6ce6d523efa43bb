"""What this process, and a run, has looked up: outcomes, the journal of them, and the names of graphs.

May import the rooms up to store.
"""
