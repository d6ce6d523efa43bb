"""What status() returns for a hook; a module of its own, so that activation and status() import little."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HookStatus"]


class HookStatus(NamedTuple):
    """One hook: ``state``: as Patch.state(), or "not for this torch"; ``reason``: why it is in that state, or ""."""

    name: str
    state: str
    reason: str
