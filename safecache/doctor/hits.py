"""Caches that are there and serve nobody: the journals of runs that looked something up, and hit nothing."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from safecache import cache_directories, files, layout, store
from safecache.doctor import finding
from safecache.doctor.finding import Finding

__all__ = ["check"]

_JOURNAL = os.path.join(".safecache", "journal")
# Bytes that are read, of the newest journals first.
_MOST_READ = 16 << 20
_SHOWN = 3


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
    for root in cache_directories.existing(environ):
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
    for line in _lines(os.path.join(root, _JOURNAL)):
        name, moment = str(line["run"]), float(line["time"])
        run = runs.get(name, _Run(name, moment, Counter()))
        runs[name] = run._replace(began=min(run.began, moment))
        if "outcome" in line:
            reason = f": {line['reason']}" if line.get("reason") else ""
            run.counts[f"{line.get('layer')} {line['outcome']}{reason}"] += 1
        counts = line.get("counts")
        for label, count in counts.items() if isinstance(counts, dict) else ():
            run.counts[label] += count if isinstance(count, int) and count > 0 else 0
    return [run for run in runs.values() if sum(run.counts.values())]


def _lines(directory: str) -> Iterator[dict[str, Any]]:
    """The lines of the newest journals. Whoever wrote them, only this is taken of them: what a person is told."""
    with suppress(OSError):
        left = _MOST_READ
        paths = [os.path.join(directory, name) for name in os.listdir(directory)]
        for path in sorted(paths, key=_modified, reverse=True):
            with suppress(OSError, store.UnusableEntry):
                content = files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW, limit=max(0, left))
                left -= len(content)
                yield from (line for line in map(_parsed, content.splitlines()) if line is not None)


def _parsed(text: bytes) -> dict[str, Any] | None:
    """None for what is no line of a journal, whole."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("time"), float) and "run" in line else None


def _modified(path: str) -> float:
    with suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0


def _entries_before(root: str, moment: float) -> int:
    return sum(0 < _modified(entry.path) < moment for entry in layout.walk(root))
