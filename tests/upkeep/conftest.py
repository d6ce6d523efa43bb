"""Keys and settings of its own for each of these tests."""

from __future__ import annotations

from helpers.in_process import cache, holding, isolated, no_jobs, run, settings

__all__ = ["cache", "holding", "isolated", "no_jobs", "run", "settings"]
