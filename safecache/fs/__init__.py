"""The file system without cache policy: open directories without following links, check owners and mounts.

May import settings and reporting.
"""
