"""Where torch, Triton and safecache keep what they cache, and how they name it.

May import the rooms up to files.
"""
