"""At a miss, keeps the parts of its key until the compile is saved, and compares them at once if so configured."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from safecache import ports
from safecache.errors import CacheWriteError
from safecache.explain import explanations, key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.places.refs import Ref
from safecache.ports import Saved
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.session import Part
from safecache.settings import config

__all__ = ["note", "trying"]

# Inherited by what this process forks.
_PROCESS = secrets.token_hex(4)
# Records of this process, not of its parent, whose compiles are under way, or were never saved.
_waiting: Part[dict[tuple[Kind, str], KeyRecord]] = Part(dict)
_MOST_WAITING = 256


def note(ref: Ref, name: str, components: Iterable[Component]) -> None:
    """A lookup has missed, and a compile follows. With SAFECACHE_EXPLAIN=1, say why."""
    record = KeyRecord(ref.kind, ref.key, name, time.time(), tuple(components), process=_PROCESS)
    waiting = _waiting.now
    while len(waiting) >= _MOST_WAITING:
        with suppress(KeyError, StopIteration):  # another thread has
            del waiting[next(iter(waiting))]
    waiting[ref.kind, ref.key] = record
    ports.observe(Saved, _remember)
    if config.current().explain:
        events.log_line(
            logging.WARNING, f"safecache: miss of the {explanations.explain(record, ref.root, saved=False)}"
        )


def _remember(saved: Saved) -> None:
    record = _waiting.now.pop((saved.ref.kind, saved.ref.key), None)
    if record is not None:
        # The entry itself is in the cache. If there is no more room, the next save reports that.
        with suppress(OSError, CacheWriteError):
            key_records.remember(record, saved.ref.root)


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
