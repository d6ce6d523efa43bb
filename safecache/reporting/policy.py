"""What follows from an event: pure decisions, no I/O."""

from __future__ import annotations

from typing import NamedTuple

from safecache.errors import (
    CacheReadError,
    CacheWriteError,
    EntryRefusedError,
    ExecutionError,
    KeyringError,
    SafecacheError,
    UnpicklableEntryError,
)
from safecache.reporting.kinds import Reason

__all__ = ["Action", "decide"]


class Action(NamedTuple):
    """``error`` None: go on without the entry. ``quarantine``: move the file away first. ``warn``: say so, once."""

    quarantine: bool
    warn: bool
    error: type[SafecacheError] | None


# An entry that somebody else may still read (stock torch, the owner of another key, a process of another namespace, a
# newer safecache) is left where it is; one that is broken or misplaced for everybody is moved away.
_QUARANTINED = frozenset(
    {
        Reason.DAMAGED,
        Reason.BAD_SEAL,
        Reason.OTHER_KIND,
        Reason.OTHER_CACHE_KEY,
        Reason.OTHER_BUILD,
        Reason.OTHER_GPU,
        Reason.STALE,
        Reason.WRONG_TYPE,
        Reason.CRASHED_RUN,
        Reason.FAILED_RUN,
        Reason.DIFFERS,
    }
)

# INCOMPLETE follows from another save that failed, which was said or raised there. OUTDATED follows from an upgrade.
# What another rank has compiled is for that rank.
# Beside a key that is refused the others go on working; what needed that one is refused, and raised, by itself.
# What a lookup came to is for its journal: a miss alone is no problem of the cache.
_SILENT = frozenset(
    {
        Reason.INCOMPLETE,
        Reason.OUTDATED,
        Reason.OTHER_RANK,
        Reason.NEVER_SEEN,
        Reason.KEY_DIFFERS,
        Reason.EVICTED,
        Reason.GUARD_FAILED,
        Reason.OTHER_RANK_MISSED,
        Reason.SAMPLED,
        Reason.UPSTREAM_BYPASS,
        Reason.DISABLED,
        Reason.LOOKUP_FAILED,
    }
)
# A crash, or an exception, is raised as what it is, and what is compiled in this process works as in stock. Without its
# remote a cache is whole: what is missing is compiled. Of what is compiled again the new is used.
_NEVER_RAISED = _SILENT | {
    Reason.STOOD_DOWN,
    Reason.KEY_REFUSED,
    Reason.NOT_TRIMMED,
    Reason.NOT_ISOLATED,
    Reason.CRASHED,
    Reason.CRASHED_BEFORE,
    Reason.FAILED_RUN,
    Reason.NOT_EXPLAINED,
    Reason.REMOTE_UNAVAILABLE,
    Reason.DIFFERS,
    Reason.NOT_RECOMPILED,
}

_STRICT_ERRORS: dict[Reason, type[SafecacheError]] = {
    Reason.UNREADABLE: CacheReadError,
    Reason.UNLOADABLE: CacheReadError,
    Reason.REMOTE_FAILED: CacheReadError,
    Reason.FEATURE_FAILED: CacheReadError,
    Reason.ENTRY_MISSING: CacheReadError,
    Reason.UNPICKLABLE: UnpicklableEntryError,
    Reason.UNPREPARED: UnpicklableEntryError,
    Reason.NOT_CACHEABLE: UnpicklableEntryError,
    Reason.UNWRITABLE: CacheWriteError,
    Reason.UNUSABLE_DIRECTORY: CacheWriteError,
    Reason.LOCK_HELD: CacheWriteError,
    Reason.NO_KEY: KeyringError,
    Reason.NOT_EXECUTABLE: ExecutionError,
    Reason.EXEC_DIR_UNUSABLE: ExecutionError,
}


def decide(reason: Reason, *, strict: bool) -> Action:
    """What to do about ``reason``."""
    raised = strict and reason not in _NEVER_RAISED
    error = _STRICT_ERRORS.get(reason, EntryRefusedError) if raised else None
    return Action(reason in _QUARANTINED, reason not in _SILENT, error)
