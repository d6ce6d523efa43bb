"""Where entries that safecache 0.1.0 has saved look for what their launchers are rebuilt from."""

from __future__ import annotations

from safecache.launchers.kernel_recipe import Recipe

__all__ = ["Recipe"]
