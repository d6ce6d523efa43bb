"""What torch and Triton import where safecache 0.1.0 has applied its source patch verified-loads to them (patches/).

That is an import of this package, and activates it as any other does. Those patched since import safecache_entry, by
which nothing becomes active.
"""

from __future__ import annotations

from safecache_entry import hook

__all__ = ["hook"]
