"""What all ranks of a process group do where they meet in collectives while they compile: compile, if one of them does.

A rank that hits does not come to those collectives, and the others would wait for it. By the store that the ranks have
met at, since a group of its own would have to be made by all of them at once. Stock torch has this from 2.15 on, for
AOTAutograd entries, where ``_sync_cache_decision_cross_ranks`` is set.
"""

from __future__ import annotations

import itertools
import logging
import sys
from datetime import timedelta
from typing import Any

from safecache.reporting import events
from safecache.session import Part, inherit

__all__ = ["all_ranks_hit"]

# Seconds for which the other ranks are waited for: longer than lookups differ, as all of them have just begun.
MOST = 60.0
_PREFIX = "safecache/agreement"
_TOO_LATE = (
    "safecache: not all ranks reached this cache lookup within {0:g} s ({1}). This process stops coordinating and uses "
    "its own cache; ranks may hang in a collective if their caches differ. Help: give every rank the same cache "
    "directory, or an empty one"
)


class _State:
    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.has_given_up = False


_state: Part[_State] = Part(_State, inherit)


def all_ranks_hit(hit: bool) -> bool:
    """Whether all ranks have hit, as this one says of itself: each calls this once for each lookup, in one order.

    After a rank that did not come in time, which is reported once, it is what this one says.
    """
    state = _state.now
    if state.has_given_up:
        return hit
    distributed: Any = sys.modules["torch.distributed"]
    try:
        store = distributed.distributed_c10d._get_default_store()
        rank, size, number = distributed.get_rank(), distributed.get_world_size(), next(state.numbers)
        names = [f"{_PREFIX}/{number}/{each}" for each in range(size)]
        store.set(names[rank], b"hit" if hit else b"miss")
        store.wait(names, timedelta(seconds=MOST))
        return all(store.get(name) == b"hit" for name in names)
    except Exception as error:  # of whatever store it is
        state.has_given_up = True
        events.log_line(logging.WARNING, _TOO_LATE.format(MOST, type(error).__name__))
        return hit
