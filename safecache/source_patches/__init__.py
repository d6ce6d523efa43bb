"""The patches of torch's and Triton's source: read, applied, removed and told apart.

May import settings, reporting and files.
"""
