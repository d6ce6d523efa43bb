"""Keys and settings of its own for each of these tests."""

from __future__ import annotations

from helpers.in_process import isolated, run, settings

__all__ = ["isolated", "run", "settings"]
