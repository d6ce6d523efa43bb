"""What upstream's cache keys leave out: sealed with what is compiled, and compared before that is used.

A feature: it may import the core, and no other feature.
"""
