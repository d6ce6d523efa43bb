"""What status() says of a hook; apart, so that activating, and asking, import as little as can be."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HookStatus"]


class HookStatus(NamedTuple):
    """One hook: ``state`` as Patch.state() has it or "not for this torch", and for one standing down the ``reason``."""

    name: str
    state: str
    reason: str
