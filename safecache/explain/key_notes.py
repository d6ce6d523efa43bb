"""At a miss, keeps the parts of its key until the compile is saved, and compares them at once if so configured."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from safecache.errors import CacheWriteError
from safecache.explain import explanations, key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.history import misses
from safecache.places.refs import Ref
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config

__all__ = ["note", "trying"]

# Inherited by what this process forks.
_PROCESS = secrets.token_hex(4)


def note(ref: Ref, name: str, components: Iterable[Component]) -> None:
    """A lookup has missed, and a compile follows. With SAFECACHE_EXPLAIN=1, say why."""
    record = KeyRecord(ref.kind, ref.key, name, time.time(), tuple(components), process=_PROCESS)
    misses.await_save(ref, lambda saved: _remember(record, saved.root))
    if config.current().explain:
        events.say(logging.WARNING, f"safecache: miss of the {explanations.explain(record, ref.root, saved=False)}")


def _remember(record: KeyRecord, root: str) -> None:
    # The entry itself is in the cache. If there is no more room, the next save reports that.
    with suppress(OSError, CacheWriteError):
        key_records.remember(record, root)


def trying(kind: Kind, work: Callable[[], None]) -> None:
    """Do ``work``, which looks into what torch or Triton have made; where that fails, say so, and go on without."""
    try:
        work()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        events.report(
            Reason.NOT_EXPLAINED,
            f"the key of a miss ({kind.word}) was not recorded: {text}.",
            cause=f"{kind.word} {type(error).__name__}",
            remedy="safecache explain cannot tell about it; the compile goes on.",
            error=error,
        )
