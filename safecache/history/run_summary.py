"""Reads what the processes of a run have looked up, and what was compiled once for several: anybody may write that."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from safecache import history
from safecache.fs import opening
from safecache.history import Time, list_time_labels, make_label, make_observed_label, make_time_label
from safecache.places import metadata
from safecache.ports import Outcome
from safecache.reporting.kinds import LOOKED_UP, OF_FLIGHTS, OF_RECOMPILE_CHECK, OF_REMOTE, Count, Kind, Reason
from safecache.settings import units

__all__ = [
    "ALL",
    "LABELS",
    "LAST",
    "OBSERVED",
    "TIMES",
    "Line",
    "Process",
    "Shared",
    "Summary",
    "find_seconds",
    "find_shared",
    "read_unverified",
    "summarise",
]

# In place of a run's id.
ALL, LAST = "all", "last"
_TEXTS = ("run", "host", "rank", "key", "name", "frame", "detail")
_LATEST = 253402300799.0  # the end of the year 9999
# Of anything that a process counts, and of its own number. Python writes no integer of more than 4,300 digits.
_MOST = 2**63


class Line(NamedTuple):
    """Line of a journal. ``label``: label() of its lookup, "" without one; ``counts``: other counts, and times in ms.

    For a compile left to another process, ``waited`` is how many seconds it was waited for, and ``took`` its own.
    """

    time: float
    pid: int
    run: str
    host: str
    rank: str
    key: str
    name: str
    frame: str
    detail: str
    label: str
    counts: dict[str, int]
    waited: float = 0.0
    took: float = 0.0


class Process(NamedTuple):
    """Lookups of one process, and what took its time, in seconds, as far as known.

    ``compiled``: compiles that were saved; ``waited``: for locks and other processes; ``in_hits``: loading hits.
    """

    host: str
    pid: int
    rank: str
    compiled: float
    waited: float
    in_hits: float
    hits: int
    lookups: int

    @property
    def seconds(self) -> float:
        """Sum of the known times."""
        return self.compiled + self.waited + self.in_hits


class Summary(NamedTuple):
    """Sums of a run. ``counts``: of its processes, by label(), time_label() in ms, observed_label() and Count.

    ``missed``: lines of lookups that were no hits; ``passed``: of what SAFECACHE=observe let pass. ``by_process``:
    those that have written, the slowest first.
    """

    run: str
    counts: Counter[str]
    missed: list[Line]
    passed: list[Line]
    by_process: list[Process]

    @property
    def lookups(self) -> Counter[str]:
        """Counts of lookups, by label()."""
        return Counter({label: number for label, number in self.counts.items() if label in LABELS})

    @property
    def hits(self) -> int:
        """How many lookups have hit."""
        return sum(each.hits for each in self.by_process)


# Everything that lookups may be counted under, and what it stands for.
_ENDS: tuple[tuple[Outcome, Reason | None], ...] = (
    (Outcome.HIT, None),
    *((outcome, reason) for outcome in (Outcome.MISS, Outcome.BYPASS) for reason in Reason),
)
LABELS = {make_label(kind, *end): (kind, *end) for kind in LOOKED_UP for end in _ENDS}
TIMES = list_time_labels()
_LEFT = Count.LEFT_TO_OTHERS.value
_TIMES_OF_WAITS = ("waited", "took")
_OBSERVED = {(kind.value, reason.value): make_observed_label(kind, reason) for kind in Kind for reason in Reason}
OBSERVED = frozenset(_OBSERVED.values())
_COUNTS = {count.value for count in (*OF_REMOTE, *OF_FLIGHTS, *OF_RECOMPILE_CHECK)}
_KNOWN = LABELS.keys() | TIMES | OBSERVED | _COUNTS


def read_unverified(root: str) -> list[Line]:
    """Return the valid lines of the journals in the cache ``root`` by time, unverified. Raises OSError."""
    directory = metadata.make_path(root, metadata.JOURNAL)
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [os.path.join(directory, name) for name in names if history.is_journal_name(name)]
    return sorted((line for path in paths for line in _iter_unverified_lines(path)), key=attrgetter("time"))


def _iter_unverified_lines(path: str) -> Iterator[Line]:
    try:
        content = opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=2 * history.LARGEST)
    except (OSError, opening.UnusableEntry):
        return  # it has just gone, or is none that this process may read: the others are counted
    for text in content.splitlines():
        line = _parse_line(text)
        if line is not None:
            yield line


def _parse_line(text: bytes) -> Line | None:
    """Parse a line; None if it is not a complete line of safecache's with values that this version knows."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not isinstance(values.get("time"), float) or not math.isfinite(values["time"]):
        return None
    texts = {name: values.get(name, "") for name in _TEXTS}
    pid, counts, what = values.get("pid"), values.get("counts"), _find_label(values)
    if not isinstance(pid, int) or abs(pid) > _MOST or not isinstance(counts, dict) or what is None:
        return None
    are_counts = all(
        name in _KNOWN and isinstance(number, int) and 0 < number <= _MOST for name, number in counts.items()
    )
    if not are_counts or not all(isinstance(text, str) for text in texts.values()):
        return None
    moment = min(max(values["time"], 0.0), _LATEST)
    times = {name: values[name] for name in _TIMES_OF_WAITS if what == _LEFT}
    return Line(time=moment, pid=pid, label=what, counts=counts, **texts, **times)


def _find_label(values: Mapping[str, Any]) -> str | None:
    if "waited" in values:
        times = map(values.get, _TIMES_OF_WAITS)
        return _LEFT if all(isinstance(time, float) and 0.0 <= time <= _LATEST for time in times) else None
    if "observed" in values:
        return _OBSERVED.get((str(values["observed"]), str(values.get("reason"))))
    if "outcome" not in values:
        return ""
    what = f"{values.get('layer')} {values['outcome']}: {values.get('reason')}"
    return what if what in LABELS else None


def summarise(lines: Iterable[Line], run: str) -> Summary | None:
    """Sum up the lines of ``run``: an id, ALL, or LAST for that of the latest line. None if it has no line."""
    found = list(lines)
    if run == LAST and found:
        run = max(found, key=attrgetter("time")).run
    chosen = [line for line in found if run in (ALL, line.run)]
    if not chosen:
        return None
    by_process: dict[tuple[str, int, str], list[Line]] = {}
    for line in chosen:
        by_process.setdefault((line.host, line.pid, line.run), []).append(line)
    processes = sorted(map(_sum_process, by_process.values()), key=lambda each: (-each.seconds, each.host, each.pid))
    missed = [line for line in chosen if line.label in LABELS]
    passed = [line for line in chosen if line.label in OBSERVED]
    return Summary(run, _sum_counts(chosen), missed, passed, processes)


def _sum_counts(lines: Iterable[Line]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.counts)
        counts.update([line.label] if line.label else [])
    return counts


def _sum_process(lines: list[Line]) -> Process:
    counts, last = _sum_counts(lines), lines[-1]
    outcomes = [(LABELS[what][1], number) for what, number in counts.items() if what in LABELS]
    return Process(
        last.host,
        last.pid,
        last.rank,
        compiled=find_seconds(counts, Time.SPENT),
        waited=sum(counts[make_time_label(kind, Time.WAITED)] for kind in (Kind.NATIVE_CODE, *LOOKED_UP)) / 1000,
        in_hits=sum(counts[make_time_label(kind, Time.HIT)] for kind in LOOKED_UP) / 1000,
        hits=sum(number for outcome, number in outcomes if outcome is Outcome.HIT),
        lookups=sum(number for _, number in outcomes),
    )


def find_seconds(counts: Mapping[str, int], which: Time) -> float:
    """Return the seconds of the cache with the most, since AOTAutograd's times include those of its graphs."""
    return max(counts.get(make_time_label(kind, which), 0) for kind in LOOKED_UP) / 1000


class Shared(NamedTuple):
    """Compile that others waited for. ``layer``, ``name``, ``pid``, ``host``: of its miss; "" and 0 if unknown.

    ``processes``: how many waited for it, ``waited`` seconds altogether; ``took``: seconds of the compile.
    """

    layer: str
    key: str
    name: str
    pid: int
    host: str
    processes: int
    waited: float
    took: float

    @property
    def avoided_seconds(self) -> float:
        """The seconds that the others would have compiled for, each by itself."""
        return self.took * self.processes

    @property
    def compiling_process(self) -> str:
        """Description of the process that compiled."""
        return f"process {self.pid} on {self.host}" if self.pid else "another host"

    def __str__(self) -> str:
        whom = units.write_count(self.processes, "process", "processes")
        return (
            f"compiled by {self.compiling_process} in {self.took:.1f} s, for which {whom} waited {self.waited:.1f} s"
            f" in place of {self.avoided_seconds:.1f} s of compiling"
        )

    def make_json(self) -> dict[str, object]:
        """Return all fields, and as ``saved`` the seconds of the spared compiles minus those of the waits."""
        return {**self._asdict(), "saved": round(self.avoided_seconds - self.waited, 3)}


def find_shared(lines: Iterable[Line], run: str = ALL) -> dict[tuple[str, float], Shared]:
    """Find the compiles that processes of ``run`` waited for, by cache key and time of the miss; largest savings first.

    A wait counts for the last miss of its key before the wait's end, in any run.
    """
    missed: dict[str, Line] = {}
    waits: dict[tuple[str, float], list[Line]] = {}
    compiled: dict[tuple[str, float], Line] = {}
    for line in sorted(lines, key=attrgetter("time")):
        if line.label in LABELS:
            missed[line.key] = line
        elif line.label == _LEFT and run in (ALL, line.run):
            miss = missed.get(line.key)
            which = (line.key, miss.time if miss is not None else 0.0)
            waits.setdefault(which, []).append(line)
            if miss is not None:
                compiled[which] = miss
    found = {which: _make_shared(each, compiled.get(which)) for which, each in waits.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].avoided_seconds))


def _make_shared(waits: list[Line], miss: Line | None) -> Shared:
    took, waited = (max(each.took for each in waits), sum(each.waited for each in waits))
    if miss is None:
        return Shared("", waits[0].key, "", 0, "", len(waits), waited, took)
    layer = LABELS[miss.label][0].word
    return Shared(layer, miss.key, miss.name, miss.pid, miss.host, len(waits), waited, took)
