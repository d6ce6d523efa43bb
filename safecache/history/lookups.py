"""What the lookups of this process came to: one outcome each, and one reason for each that was not a hit."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from safecache import ports
from safecache.history import journal
from safecache.places.refs import Ref
from safecache.ports import Counted, LeftToOthers, Lookup, Observed, Outcome, Saved, Waited
from safecache.reporting import events, report
from safecache.reporting.kinds import LOOKED_UP, OF_RECOMPILE_CHECK, OF_REMOTE, Count, Kind, Reason
from safecache.session import Part
from safecache.settings import config

__all__ = [
    "Time",
    "counts",
    "label",
    "observe",
    "observed_label",
    "stats",
    "time_label",
    "time_labels",
]


# What is journaled of what is counted; LEFT_TO_OTHERS has a line of its own.
_JOURNALED = frozenset(each.value for each in (*OF_REMOTE, Count.WAITED_IN_VAIN, *OF_RECOMPILE_CHECK))

_counts: Part[Counter[str]] = Part(Counter)


def label(kind: Kind, outcome: Outcome, reason: Reason | None) -> str:
    """How lookups that came to the same are counted, such as "fx miss: never seen"."""
    return f"{kind.word} {outcome.value}" + (f": {reason.value}" if reason is not None else "")


def observed_label(kind: Kind, reason: Reason) -> str:
    """How what SAFECACHE=observe lets pass is counted, such as "kernel file would be refused: unsealed"."""
    return f"{kind.noun} would be refused: {reason.value}"


class Time(Enum):
    """Of compiles: what hits have spared, by what the entry says; and what went into entries that were saved.

    And what the hits have taken themselves, and what locks of torch's and other processes' compiles were waited for.
    """

    SAVED = "ms saved"
    SPENT = "ms spent"
    HIT = "ms in hits"
    WAITED = "ms waited"


def time_label(kind: Kind, which: Time) -> str:
    """How the milliseconds are counted, such as "fx ms saved". Those of AOTAutograd entries include their graphs'."""
    return f"{kind.word} {which.value}"


def time_labels() -> frozenset[str]:
    """Everything that times may be counted under: waits also for what is built."""
    built = time_label(Kind.NATIVE_CODE, Time.WAITED)
    return frozenset(time_label(kind, each) for kind in LOOKED_UP for each in Time) | {built}


def _add_seconds(ref: Ref, which: Time, seconds: float) -> None:
    if seconds >= 0.001:
        journal.count(time_label(ref.kind, which), ref.root, int(seconds * 1000))


def stats() -> dict[str, int]:
    """How often each thing happened in this process: events.counters() and counts()."""
    return events.counters() | counts()


def counts() -> dict[str, int]:
    """How many lookups of this process came to what, by label(); absent means none."""
    with _counts.lock:
        return dict(_counts.now)


def observe() -> None:
    """Keep the history of this process from now on."""
    ports.observe(Lookup, _record)
    ports.observe(Saved, _save)
    ports.observe(Waited, _wait)
    ports.observe(LeftToOthers, journal.leave_to_others)
    ports.observe(Counted, _count)
    ports.observe(Observed, _keep_observed)


def _save(saved: Saved) -> None:
    _add_seconds(saved.ref, Time.SPENT, saved.seconds)


def _wait(waited: Waited) -> None:
    _add_seconds(waited.ref, Time.WAITED, waited.seconds)


def _count(counted: Counted) -> None:
    # A command that belongs to no run has no journal.
    if counted.name in _JOURNALED and config.run_id():
        journal.count(counted.name, counted.root or config.cache_directory() or "", counted.number)


def _keep_observed(observed: Observed) -> None:
    line: dict[str, object] = {"key": observed.where, "observed": observed.kind.value, "reason": observed.reason.value}
    label = observed_label(observed.kind, observed.reason)
    journal.write(label, config.cache_directory() or "", line | {"detail": observed.evidence})


def _record(lookup: Lookup) -> None:
    """Count a lookup; what was not a hit goes to the journal at once, and to torch's trace."""
    what, root = label(lookup.ref.kind, lookup.outcome, lookup.reason), lookup.ref.root
    with _counts.lock:
        _counts.now[what] += 1
    with report.contain_errors("the journal of lookups", "This lookup is not recorded."):
        ports.tell(Counted(what))
        if lookup.outcome is not Outcome.HIT:
            line = _as_line(lookup)
            journal.write(what, root, line)
            events.artifact(f"{lookup.ref.kind.word} {lookup.outcome.value}", line)
            return
        journal.count(what, root)
        if not lookup.is_part:
            _add_seconds(lookup.ref, Time.SAVED, lookup.saved)
            _add_seconds(lookup.ref, Time.HIT, lookup.seconds)


def _as_line(lookup: Lookup) -> dict[str, object]:
    return {
        "layer": lookup.ref.kind.word,
        "key": lookup.ref.key,
        "name": lookup.name,
        "outcome": lookup.outcome.value,
        "reason": lookup.reason.value if lookup.reason is not None else None,
        "detail": lookup.detail,
        "seconds": round(lookup.seconds, 6),
        "frame": lookup.frame,
    }
