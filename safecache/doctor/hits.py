"""Caches that are there and serve nobody: the journal of a run with lookups, and no hit."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from safecache import cache_directories, files, layout, store
from safecache.doctor import finding
from safecache.doctor.finding import Finding

__all__ = ["check"]

_JOURNAL = os.path.join(".safecache", "journal")
# Bytes of the newest journals that are read.
_MOST_READ = 16 << 20
_MOST_REASONS = 3


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The last run that looked something up in each cache directory, if it has found nothing there."""
    for root in cache_directories.existing(environ):
        yield from _last_run(root)


def _last_run(root: str) -> Iterator[Finding]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in _lines(os.path.join(root, _JOURNAL)):
        runs.setdefault(str(line.get("run")), []).append(line)
    if not runs:
        return
    run, lines = max(runs.items(), key=lambda item: max(_time(line) for line in item[1]))
    outcomes: Counter[str] = Counter()
    for line in lines:
        outcomes[str(line.get("outcome")).lower()] += _count(line)
    lookups = sum(outcomes.values())
    older = _entries_before(root, min(_time(line) for line in lines))
    if lookups and not outcomes["hit"] and older:
        reasons = Counter(str(line.get("reason")) for line in lines)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(_MOST_REASONS))
        evidence = f"The last run in {root}, {run}, looked up {lookups} and hit nothing ({why}), though {older} entries"
        yield finding.warning("never-hit", f"{evidence} were there before it.", "safecache stats --run last")


def _lines(directory: str) -> Iterator[dict[str, Any]]:
    """Of the newest journals, whoever wrote them: nothing in them is believed but for what is said here."""
    with suppress(OSError):
        left = _MOST_READ
        paths = [os.path.join(directory, name) for name in os.listdir(directory)]
        for path in sorted(paths, key=_modified, reverse=True):
            with suppress(OSError, store.UnusableEntry):
                content = files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW, limit=max(0, left))
                left -= len(content)
                for line in content.splitlines():
                    with suppress(ValueError, RecursionError):
                        parsed = json.loads(line)
                        if isinstance(parsed, dict) and "outcome" in parsed:
                            yield parsed


def _modified(path: str) -> float:
    with suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0


def _time(line: dict[str, Any]) -> float:
    time = line.get("time")
    return float(time) if isinstance(time, (int, float)) else 0.0


def _count(line: dict[str, Any]) -> int:
    count = line.get("count", 1)
    return count if isinstance(count, int) and count > 0 else 1


def _entries_before(root: str, moment: float) -> int:
    return sum(0 < _modified(entry.path) < moment for entry in layout.walk(root))
