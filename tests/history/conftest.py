"""Keys and settings of its own for each of these tests."""

from __future__ import annotations

from helpers.in_process import isolated, no_jobs, run

__all__ = ["isolated", "no_jobs", "run"]
