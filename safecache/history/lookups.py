"""What the lookups of this process came to: one outcome each, and one reason for each that was not a hit."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import NamedTuple

from safecache.errors import MissError
from safecache.history import journal
from safecache.places.refs import Ref
from safecache.reporting import boundary, events
from safecache.reporting.kinds import LOOKED_UP, Kind, Reason
from safecache.session import ForkLock, Part
from safecache.settings import config

__all__ = [
    "Lookup",
    "Outcome",
    "Time",
    "add_seconds",
    "add_time",
    "counts",
    "label",
    "record",
    "stats",
    "time_label",
    "time_labels",
    "what_must_hit_raises",
]


class Outcome(Enum):
    """A bypass is a graph that torch did not look up, or a hit that a setting ignores."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"


class Lookup(NamedTuple):
    """``ref``: of a kind of LOOKED_UP. ``reason``: None for a hit.

    ``name``: the compiled function, or the kernel, as its author calls it; "" for a hit.
    ``frame``: Dynamo's id of the compile it was for, such as "0/1", "" outside of one. ``seconds``: what it took.
    """

    ref: Ref
    name: str
    outcome: Outcome
    reason: Reason | None
    detail: str
    seconds: float
    frame: str


_lock = ForkLock()
_counts: Part[Counter[str]] = Part(Counter)


def label(kind: Kind, outcome: Outcome, reason: Reason | None) -> str:
    """How lookups that came to the same are counted, such as "fx miss: never seen"."""
    return f"{kind.word} {outcome.value}" + (f": {reason.value}" if reason is not None else "")


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


# Fields of a CompiledFxGraph, and of an AOTAutograd entry: torch/_inductor/output_code.py and
# torch/_functorch/_aot_autograd/aot_autograd_result.py, the same in torch 2.11 to 2.15.
_TIMES = ("_time_taken_ns", "forward_time_taken_ns", "backward_time_taken_ns")


def add_time(ref: Ref, which: Time, entry: object) -> None:
    """Add the time that compiling ``entry`` took."""
    taken = sum(value for value in (getattr(entry, name, 0) for name in _TIMES) if isinstance(value, int))
    add_seconds(ref, which, taken / 10**9)


def add_seconds(ref: Ref, which: Time, seconds: float) -> None:
    """Add what something took, from a millisecond on."""
    if seconds >= 0.001:
        journal.count(time_label(ref.kind, which), ref.root, int(seconds * 1000))


def stats() -> dict[str, int]:
    """How often each thing happened in this process: events.counters() and counts()."""
    return events.counters() | counts()


def counts() -> dict[str, int]:
    """How many lookups of this process came to what, by label(); absent means none."""
    with _lock:
        return dict(_counts.now)


def record(lookup: Lookup) -> None:
    """Count a lookup; what was not a hit goes to the journal at once, and to torch's trace."""
    what, root = label(lookup.ref.kind, lookup.outcome, lookup.reason), lookup.ref.root
    with _lock:
        _counts.now[what] += 1
    with boundary.contain_errors("the journal of lookups", "This lookup is not recorded."):
        events.notify(what)
        if lookup.outcome is Outcome.HIT:
            journal.count(what, root)
        else:
            line = _as_line(lookup)
            journal.write(what, root, line)
            events.artifact(f"{lookup.ref.kind.word} {lookup.outcome.value}", line)


def _as_line(lookup: Lookup) -> dict[str, object]:
    values = lookup._asdict() | {"seconds": round(lookup.seconds, 6)}
    ref = values.pop("ref")
    line = {"layer": ref.kind.word, "key": ref.key} | values
    return {name: value.value if isinstance(value, Enum) else value for name, value in line.items()}


def what_must_hit_raises(lookup: Lookup) -> MissError | None:
    """The error that SAFECACHE_MUST_HIT makes of a lookup after which something would be compiled.

    What torch never caches is not one, since no warming changes that. Nor is an AOTAutograd cache that is off: the
    FX graph cache is asked then. A file that was compiled ahead of time has an error of its own.
    """
    if lookup.outcome is Outcome.HIT or lookup.ref.kind is Kind.AOT_MODEL or not config.current().must_hit:
        return None
    disabled = lookup.reason is Reason.DISABLED and lookup.ref.kind is not Kind.AOT_ENTRY
    if lookup.outcome is Outcome.BYPASS and not disabled:
        return None
    return MissError(_text(lookup))


def _text(lookup: Lookup) -> str:
    reason = lookup.reason.value if lookup.reason is not None else ""
    detail = f": {lookup.detail}" if lookup.detail else ""
    where = f"the {lookup.ref.kind.cache} cache for {lookup.name or 'a graph'}"
    return (
        f"safecache: miss in {where} [{reason}]{detail} (key {lookup.ref.key or 'unknown'}), and"
        " SAFECACHE_MUST_HIT forbids compiling. Help: safecache explain; warm the cache with the same code, settings"
        " and environment; or unset SAFECACHE_MUST_HIT"
    )
