"""CacheBase, in torch._inductor.codecache: the file of what max-autotune, padding and overlap have measured.

It is JSON of numbers, by which Inductor chooses among what it proposes itself; so it has no seal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache.entries import loading
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason

__all__ = ["get_local_cache", "update_local_cache"]

_REMEDY = "What it holds is measured again."
_WRITE_REMEDY = "Make room there, or let TORCHINDUCTOR_CACHE_DIR name a directory that can be written."


def get_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheBase.get_local_cache: one that cannot be read, or holds something else, is empty."""
    path = str(instance.get_local_cache_path())
    # What is no file would be waited for, or be passed over without a word.
    if os.path.lexists(path) and loading.read(Kind.AUTOTUNING, path) is None:
        return {}
    try:
        found = wrapped(*args, **kwargs)
    except Exception as error:
        text = f"it cannot be read: {type(error).__name__}: {error}"
        loading.note(Reason.UNLOADABLE, Kind.AUTOTUNING, path, text, _REMEDY, error)
        return {}
    if isinstance(found, dict) and all(map(_is_measured, found.values())):
        return found
    loading.note(Reason.WRONG_TYPE, Kind.AUTOTUNING, path, "it holds other things than measurements", _REMEDY)
    return {}


def _is_measured(value: Any) -> bool:
    """By name of an operation and so on, or by a key."""
    if isinstance(value, dict):
        return all(map(_is_measured, value.values()))
    return value is None or isinstance(value, (int, float))


def update_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CacheBase.update_local_cache: what cannot be written is measured again."""
    try:
        wrapped(*args, **kwargs)
    except OSError as error:
        path = str(instance.get_local_cache_path())
        text = f"{Kind.AUTOTUNING.noun} {path} was not saved: {error.strerror}."
        events.report(
            Reason.UNWRITABLE, text, cause=f"{error.errno} {path}", remedy=f"{_REMEDY} {_WRITE_REMEDY}", error=error
        )
