"""Caches that are there and serve nobody: the journals of runs that looked something up, and hit nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.files import folders
from safecache.history import run_summary
from safecache.places import layout
from safecache.tiers import levels

__all__ = ["check"]

_SHOWN = 3
_LABELS = run_summary.labels()


class _Run(NamedTuple):
    """``counts``: lookups by what they came to, such as "fx miss: never seen"; ``began``: when its first line says."""

    name: str
    began: float
    counts: Counter[str]

    @property
    def hits(self) -> int:
        return sum(count for label, count in self.counts.items() if label.partition(":")[0].endswith(" hit"))


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The last runs that looked something up in each cache directory, if they have found nothing of what was there."""
    for root in levels.existing_caches(environ):
        unserved = []
        for run in sorted(_runs(root), key=lambda run: run.began, reverse=True):
            if run.hits:
                break
            unserved.append(run)
        older = _entries_before(root, unserved[0].began) if unserved else 0
        if older:
            yield _never_hit(root, unserved, older)


def _never_hit(root: str, unserved: list[_Run], older: int) -> Finding:
    counts = unserved[0].counts
    why = ", ".join(f"{count} {label}" for label, count in counts.most_common(_SHOWN))
    evidence = f"The last run in {root} ({unserved[0].name}) looked up {sum(counts.values())} and hit nothing: {why}."
    evidence += f" {older} entries were there before it."
    remedy = "safecache stats --run last"
    if len(unserved) == 1:
        return finding.info("never-hit", f"{evidence} A new model does that once.", remedy)
    return finding.warning("never-hit", f"{evidence} Nor did any of the {len(unserved) - 1} before it.", remedy)


def _runs(root: str) -> list[_Run]:
    runs: dict[str, _Run] = {}
    with suppress(OSError):  # who may not read it, another check says
        for line in run_summary.read(root):
            run = runs.setdefault(line.run, _Run(line.run, line.time, Counter()))
            run.counts.update({label: number for label, number in line.counts.items() if label in _LABELS})
            run.counts.update([line.label] if line.label else [])
    return [run for run in runs.values() if run.counts]


def _entries_before(root: str, moment: float) -> int:
    return sum(0 < folders.modified(entry.path) < moment for entry in layout.walk(root))
