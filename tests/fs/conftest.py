"""Keys and settings of its own for each of these tests."""

from __future__ import annotations

from helpers.in_process import cache, isolated, local, no_jobs, run, settings, shared

__all__ = ["cache", "isolated", "local", "no_jobs", "run", "settings", "shared"]
