"""What upstream's cache keys leave out: sealed with what is compiled, and compared before that is used.

May import the rooms up to signing.
"""
