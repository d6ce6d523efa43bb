"""CppCodeCache, in torch._inductor.codecache: a kernel of C++ is built and loaded wherever files can be kept."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from safecache import directory_faults, events, rescue
from safecache.directory_faults import Fault
from safecache.errors import SafecacheError
from safecache.reasons import Reason

__all__ = ["load_async", "precompile_header"]

# Seconds for which headers are not precompiled after that has failed: it may mean to wait for a lock.
_PATIENCE = 600.0
_REMEDY = "Kernels are built without precompiled headers for now, which takes some seconds more for each."
_without_until = 0.0


def load_async(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """CppCodeCache.load_async: what it writes, builds and loads, once more where another directory is needed."""

    def start() -> Callable[[], Any]:
        load: Callable[[], Any] = wrapped(*args, **kwargs)
        return load

    load = rescue.attempt(start)

    def loaded() -> Any:
        try:
            return load()
        except Exception as error:
            if not rescue.replaced(error):
                raise
        _forget(instance, load)
        return start()()

    return loaded


def _forget(cache: Any, load: Callable[[], Any]) -> None:
    for key in [key for key, known in cache.cache.items() if known is load]:
        del cache.cache[key]
        # A module that could not be executed, which torch would take for one that was.
        sys.modules.pop(f"{key}.{getattr(cache, 'entry_function', '')}", None)


def precompile_header(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """_precompile_header: None, and kernels are built without, where there is no place for some 150 MB or no lock."""
    global _without_until
    if time.monotonic() < _without_until:
        return None
    try:
        path: str = wrapped(*args, **kwargs)
        return path
    except SafecacheError:
        raise
    except Exception as error:
        place = sys.modules["torch._inductor.codecache"]._HEADER_DIR
        fault = _why_not(error, place)
        if fault is None:
            raise
        _without_until = time.monotonic() + _PATIENCE
        message = f"no headers can be precompiled in {place}: {fault.text}."
        events.report(fault.reason, message, cause=place, remedy=_REMEDY, error=error)
        return None


def _why_not(error: Exception, place: str) -> Fault | None:
    directories = (place, tempfile.gettempdir())
    fault = directory_faults.find(error, *directories)
    if fault is not None:
        return fault
    against = next(filter(None, map(directory_faults.probe, directories)), None)
    return None if against is None else Fault(Reason.UNUSABLE_DIRECTORY, against)
