"""What the remote gave and cost, as it is counted: for this process, for its metrics, and in the journal of its run."""

from __future__ import annotations

from safecache.history import journal
from safecache.reporting import events
from safecache.reporting.kinds import Count
from safecache.settings import config

__all__ = ["add"]


def add(what: Count, number: int = 1) -> None:
    """Add to it. A command that belongs to no run has no journal either."""
    if number:
        events.count(what, number)
        if config.run_id():
            journal.count(what.value, config.cache_directory() or "", number)
