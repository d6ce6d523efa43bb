"""What follows from a comparison: it is counted and reported, and an entry that differs is set aside, once."""

from __future__ import annotations

import logging
from typing import NamedTuple

from safecache.reporting import events
from safecache.reporting.kinds import Count, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.store import entry_files
from safecache.verification import comparison, evidence
from safecache.verification.comparison import Difference, Key

__all__ = ["Entry", "alike", "differs", "unverified"]

_REMEDY = (
    "Something that decides about the code is not in its key, such as a custom operator's schema, or this graph is "
    "not compiled alike twice: see safecache help verify."
)
# Of this process: a forked child is to say nothing of what its parent has used.
_differing: Part[list[str]] = Part(list)


class Entry(NamedTuple):
    """One that was hit: its sealed bytes, and where they lie. ``root``: the cache that may be changed, or ""."""

    key: Key
    content: bytes
    path: str
    root: str


def alike() -> None:
    """An entry is compiled now as it was then."""
    events.count(Count.RECOMPILED)


def unverified(what: str, why: str) -> None:
    """It could not be compiled again."""
    events.report(Reason.NOT_RECOMPILED, f"{what} was not verified: {why}.", cause=why)


def differs(entry: Entry, made: bytes, differences: list[Difference]) -> str:
    """Report it, keep both and set the entry aside; where its evidence lies then, "" for nowhere.

    Not set aside is what has differed before: it is compiled otherwise each time, and would be so at each start.
    """
    kind, key = entry.key
    root = entry.root or config.cache_directory() or ""
    again = evidence.is_kept(root, entry.key)
    kept, said = "", "It has differed before, and is left where it is."
    if not again:
        kept, said = _kept(root, entry, made, differences)
        said = f"{said} {_moved(entry)}"
    text = f"{kind.noun} {entry.path or key} is compiled otherwise now: {comparison.show(differences)}\n"
    _remember(f"{kind.noun} {key}")
    events.report(Reason.DIFFERS, text, cause=key, remedy=f"{said} {_REMEDY}")
    return kept


def _kept(root: str, entry: Entry, made: bytes, differences: list[Difference]) -> tuple[str, str]:
    try:
        place = evidence.keep(root, entry.key, entry.content, made, comparison.show(differences), {"path": entry.path})
    except OSError as error:
        return "", f"Nothing could be kept as evidence: {error.strerror or error}."
    return place, f"Both are in {place}."


def _moved(entry: Entry) -> str:
    if not entry.root:
        return "It lies in a lower tier, and stays."
    moved = entry_files.quarantine(entry.path, entry.root, Reason.DIFFERS, entry.content)
    if moved is None:
        return "It could not be moved away, or was replaced since."
    events.count(Count.QUARANTINED)
    return f"It was moved to {moved}, and is compiled anew at the next start."


def _remember(what: str) -> None:
    if not _differing.now:
        call_at_exit(_say_at_the_end)
    _differing.now.append(what)


def _say_at_the_end() -> None:
    differing = _differing.now
    if differing and config.current().strict:
        which = ", ".join(differing)
        text = f"safecache: {len(differing)} entries that were used are compiled otherwise now: {which}"
        events.log_line(logging.ERROR, text)
        _differing.reset()
