"""Keys and settings of its own for each of these tests."""

from __future__ import annotations

from helpers.in_process import isolated, settings

__all__ = ["isolated", "settings"]
