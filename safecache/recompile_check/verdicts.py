"""What follows from a comparison: it is counted and reported, and an entry that differs is set aside, once."""

from __future__ import annotations

import logging

from safecache.ports import Found
from safecache.recompile_check import comparison, evidence
from safecache.recompile_check.comparison import Difference
from safecache.reporting import events
from safecache.reporting.kinds import Count, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.store import entry_files

__all__ = ["count_alike", "report_difference", "report_uncompared"]

_REMEDY = (
    "Something that decides about the code is not in its key, such as a custom operator's schema, or this graph is "
    "not compiled alike twice: see safecache help recompile_check."
)
# Of this process: a forked child is to say nothing of what its parent has used.
_differing: Part[list[str]] = Part(list)


def count_alike() -> None:
    """Count an entry that is compiled now as it was then."""
    events.count(Count.RECOMPILED)


def report_uncompared(what: str, why: str) -> None:
    """Report what was compiled again and could not be compared."""
    events.report(Reason.NOT_RECOMPILED, f"{what} was not compared: {why}.", cause=why)


def report_difference(entry: Found, made: bytes, differences: list[Difference]) -> str:
    """Report it, keep both and set the entry aside; where its evidence lies then, "" for nowhere.

    Not set aside is what has differed before: it is compiled otherwise each time, and would be so at each start.
    """
    kind, key = entry.ref.kind, entry.ref.key
    root = entry.ref.root or config.cache_directory() or ""
    kept, said = "", "It has differed before, and is left where it is."
    if not evidence.is_kept(root, (kind, key)):
        kept, said = _kept(root, entry, made, differences)
        said = f"{said} {_moved(entry)}"
    text = f"{kind.noun} {entry.origin or key} is compiled otherwise now: {comparison.show(differences)}\n"
    _remember(f"{kind.noun} {key}")
    events.report(Reason.DIFFERS, text, cause=key, remedy=f"{said} {_REMEDY}")
    return kept


def _kept(root: str, entry: Found, made: bytes, differences: list[Difference]) -> tuple[str, str]:
    try:
        shown, facts = comparison.show(differences), {"path": entry.origin}
        place = evidence.keep(root, (entry.ref.kind, entry.ref.key), entry.content, made, shown, facts)
    except OSError as error:
        return "", f"Nothing could be kept as evidence: {error.strerror or error}."
    return place, f"Both are in {place}."


def _moved(entry: Found) -> str:
    if not entry.ref.root:
        return "It lies in a lower tier, and stays."
    moved = entry_files.quarantine(entry.origin, entry.ref.root, Reason.DIFFERS, entry.content)
    if moved is None:
        return "It could not be moved away, or was replaced since."
    events.count(Count.QUARANTINED)
    return f"It was moved to {moved}, and what is compiled now is used and saved."


def _remember(what: str) -> None:
    if not _differing.now:
        call_at_exit(_say_at_the_end)
    _differing.now.append(what)


def _say_at_the_end() -> None:
    differing = _differing.now
    if differing and config.current().strict:
        which = ", ".join(differing)
        text = f"safecache: {len(differing)} entries are compiled otherwise now: {which}"
        events.log_line(logging.ERROR, text)
        _differing.reset()
