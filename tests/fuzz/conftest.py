"""The keys, settings and hypothesis profile of tests that run in one process."""

from __future__ import annotations

from helpers.in_process import isolated

__all__ = ["isolated"]
