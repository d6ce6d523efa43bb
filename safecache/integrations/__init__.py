"""Hooks, one module for each upstream module: translate its calls, and contain no policy.

May import any package but the command line.
"""

from safecache import features

__all__ = ["features"]

features.plug()
