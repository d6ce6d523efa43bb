"""What was compiled once for several processes: by whom, who waited for it, and what that has spared them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from safecache.history import run_summary
from safecache.history.run_summary import Line

__all__ = ["Shared", "find"]

_LABELS = run_summary.labels()


class Shared(NamedTuple):
    """One compile. ``layer``, ``name``, ``pid``, ``host``: of the miss before it; "" and 0 if no journal has that.

    ``processes``: how many waited for it, ``waited`` seconds altogether; ``took``: those of the compile.
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
    def compiling(self) -> float:
        """The seconds that the others would have compiled for, each by itself."""
        return self.took * self.processes

    @property
    def by(self) -> str:
        """Who compiled it, in words."""
        return f"process {self.pid} on {self.host}" if self.pid else "another host"

    def __str__(self) -> str:
        whom = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return (
            f"compiled by {self.by} in {self.took:.1f} s, for which {whom} waited {self.waited:.1f} s in place of"
            f" {self.compiling:.1f} s of compiling"
        )

    def as_json(self) -> dict[str, object]:
        """With what it saved: the time of the compiles that were not made, without that of the waits."""
        return {**self._asdict(), "saved": round(self.compiling - self.waited, 3)}


def find(lines: Iterable[Line], run: str = run_summary.ALL) -> dict[tuple[str, float], Shared]:
    """What processes of ``run`` have waited for, by its key and when that missed: the largest savings first.

    A wait is for whoever missed that key last before the wait's end, in any run.
    """
    missed: dict[str, Line] = {}
    waits: dict[tuple[str, float], list[Line]] = {}
    compiled: dict[tuple[str, float], Line] = {}
    for line in sorted(lines, key=attrgetter("time")):
        if line.label in _LABELS:
            missed[line.key] = line
        elif line.label and run in (run_summary.ALL, line.run):
            miss = missed.get(line.key)
            which = (line.key, miss.time if miss is not None else 0.0)
            waits.setdefault(which, []).append(line)
            if miss is not None:
                compiled[which] = miss
    found = {which: _shared(each, compiled.get(which)) for which, each in waits.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].compiling))


def _shared(waits: list[Line], miss: Line | None) -> Shared:
    took, waited = (max(each.took for each in waits), sum(each.waited for each in waits))
    if miss is None:
        return Shared("", waits[0].key, "", 0, "", len(waits), waited, took)
    layer = _LABELS[miss.label][0].word
    return Shared(layer, miss.key, miss.name, miss.pid, miss.host, len(waits), waited, took)
