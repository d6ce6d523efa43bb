"""The state of a hook, and what status() returns; a module of its own, so that activation imports little."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["HookState", "HookStatus"]


class HookState(str, Enum):
    """A state of a hook; each equals, and prints as, the word that reports have for it."""

    ACTIVE = "active"
    IN_SOURCE = "in the source"
    NOT_FOR_TORCH = "not for this torch"
    NOT_IMPORTED = "not yet imported"
    STANDING_DOWN = "standing down"
    OVERWRITTEN = "overwritten"
    INACTIVE = "inactive"

    @property
    def is_on(self) -> bool:
        """Tell whether the hook, or the source itself, does the work."""
        return self in (HookState.ACTIVE, HookState.IN_SOURCE)

    @property
    def is_healthy(self) -> bool:
        """Tell whether nothing is lost: the hook is on, or this torch has no use for it."""
        return self.is_on or self is HookState.NOT_FOR_TORCH

    __str__, __repr__ = str.__str__, str.__repr__


class HookStatus(NamedTuple):
    """A hook by the ``name`` of its target, its ``state``, and the ``reason`` of that state, or ""."""

    name: str
    state: HookState
    reason: str
