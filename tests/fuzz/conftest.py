"""The keys, settings and hypothesis profile of the unit tests."""

from __future__ import annotations

from unit.conftest import isolated

__all__ = ["isolated"]
