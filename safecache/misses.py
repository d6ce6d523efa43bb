"""What missed, kept until the compile that follows is saved: then the record of its key is."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from safecache import config, events, explanations, key_records
from safecache.key_records import Component, KeyRecord
from safecache.lookups import Layer
from safecache.reasons import Reason

__all__ = ["note", "saved", "trying"]

_log = logging.getLogger("safecache")
# Those of this process whose compiles are under way, or were never saved.
_waiting: dict[tuple[Layer, str], KeyRecord] = {}
_MOST_WAITING = 256
# Inherited by what this process forks.
_PROCESS = secrets.token_hex(4)


def note(layer: Layer, key: str, name: str, root: str, components: Iterable[Component]) -> None:
    """A lookup in the cache ``root`` has missed, and a compile follows. With SAFECACHE_EXPLAIN=1, say why."""
    record = KeyRecord(layer, key, name, time.time(), tuple(components), process=_PROCESS)
    while len(_waiting) >= _MOST_WAITING:
        with suppress(KeyError, StopIteration):  # another thread has
            del _waiting[next(iter(_waiting))]
    _waiting[layer, key] = record
    if config.current().explain:
        _log.warning("safecache: miss of the %s", explanations.explain(record, root, saved=False))


def saved(layer: Layer, key: str, root: str) -> None:
    """What was compiled after that miss is in the cache ``root`` now."""
    record = _waiting.pop((layer, key), None)
    if record is not None:
        with suppress(OSError):  # the cache has the entry; that there is room for no more, the next one reports
            key_records.remember(record, root)


def trying(layer: Layer, work: Callable[[], None]) -> None:
    """Do ``work``, which looks into what torch or Triton have made; where that fails, say so, and go on without."""
    try:
        work()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        events.report(
            Reason.NOT_EXPLAINED,
            f"the key of a miss ({layer.value}) was not recorded: {text}.",
            cause=f"{layer.value} {type(error).__name__}",
            remedy="safecache explain cannot tell about it; the compile goes on.",
            error=error,
        )


def _forget() -> None:
    # A forked child has not begun the compiles of its parent.
    _waiting.clear()


os.register_at_fork(after_in_child=_forget)
