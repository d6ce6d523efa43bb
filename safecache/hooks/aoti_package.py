"""AOTInductor packages, wherever they are loaded: in C++, from a directory that they are unpacked to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import load_failure, provenance, targets

__all__ = ["load"]


def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_package and _load_aoti: say what to do where packages are unpacked to a noexec mount."""
    moves = provenance.torch_release() >= targets.PACKAGES_OBEY_TMPDIR_FROM
    return load_failure.explain(wrapped, args, kwargs, "TMPDIR" if moves else None)
