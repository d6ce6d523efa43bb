"""CppCodeCache, in torch._inductor.codecache: a kernel of C++ is built and loaded wherever files can be kept."""

from __future__ import annotations

import errno
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from safecache.code import gpu_binaries, lock_guards
from safecache.errors import EntryRefusedError, SafecacheError
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.signing import keyring
from safecache.tiers import directory_faults, fallback
from safecache.tiers.directory_faults import Fault

__all__ = ["load_async", "precompile_header"]

# Seconds for which headers are not precompiled after that has failed: it may mean to wait for a lock.
_PATIENCE = 600.0
_REMEDY = "Kernels are built without precompiled headers for now, which takes some seconds more for each."
_without_until = 0.0


def load_async(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """CppCodeCache.load_async: what it writes, builds and loads, once more where another directory is needed."""

    def start() -> Callable[[], Any]:
        with lock_guards.guarding(_spare):
            load: Callable[[], Any] = wrapped(*args, **kwargs)
        return load

    gpu_binaries.admit(*(code for code in (*args[:1], *kwargs.values()) if isinstance(code, str)))
    load = fallback.attempt(start)

    def loaded() -> Any:
        try:
            return load()
        except Exception as error:
            if not fallback.replaced(_as_fault(error)):
                raise
        _forget(instance, load)
        return start()()

    return loaded


def _spare(lock: lock_guards.Lock) -> None:
    """Torch looks under the lock whether a library is there, and has it built under the same one if not."""
    if lock_guards.source_of(lock) is None:
        lock.take()


def _as_fault(error: Exception) -> Exception:
    """In default mode, a library that was exchanged since it was verified is a fault of the directory it lies in."""
    if not isinstance(error, EntryRefusedError) or config.current().strict:
        return error
    return directory_faults.Immovable(errno.EPERM, str(error), config.cache_directory())


def _forget(cache: Any, load: Callable[[], Any]) -> None:
    for key in [key for key, known in cache.cache.items() if known is load]:
        del cache.cache[key]
        # A module that could not be executed, which torch would take for one that was.
        sys.modules.pop(f"{key}.{getattr(cache, 'entry_function', '')}", None)


def precompile_header(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """_precompile_header: None, and kernels are built without, where there is no place for some 150 MB or no lock."""
    global _without_until
    # Without a key nobody could tell the next process that it is the one that was made.
    if time.monotonic() < _without_until or keyring.current().signing is None:
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
