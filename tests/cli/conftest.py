"""Keys and settings of its own for each of these tests."""

from __future__ import annotations

from helpers.in_process import ask, cache, holding, isolated, listed, mapping, no_jobs, run, settings

__all__ = ["ask", "cache", "holding", "isolated", "listed", "mapping", "no_jobs", "run", "settings"]
