"""What is built, and then loaded or run: sources, libraries, kernels, extensions, packages; let through or made anew.

May import the rooms up to entries.
"""
