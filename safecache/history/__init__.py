"""What this process, and a run, has looked up: outcomes, and the journal of them.

A feature: it may import the core, and no other feature.
"""
