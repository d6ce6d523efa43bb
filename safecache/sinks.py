"""The table of sinks: what comes of each place that safecache.census finds, read from sinks.txt beside this module."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from safecache import targets
from safecache.census import Sink, scan

__all__ = ["DISTRIBUTIONS", "Listed", "Verdict", "differences", "installed", "listed", "release_of", "table"]

DISTRIBUTIONS = ("torch", "triton")
_TABLE = os.path.join(os.path.dirname(__file__), "sinks.txt")
_ROW = re.compile(r"  (\S+) (\S+) (\S+?)(?:\*(\d+))?(?: (\d+\.\d+)(?:-(\d+\.\d+))?)?")
_FIRST = {"torch": targets.TORCH_FROM, "triton": targets.TRITON_FROM}
_LAST = {"torch": targets.TORCH_UNTIL, "triton": targets.TRITON_UNTIL}


class Verdict(NamedTuple):
    """What comes of a sink: the ``hooks`` that verify what is read there, or the ``reason`` why none has to.

    ``open``: something has to, and nothing does yet; the reason says what.
    """

    hooks: tuple[str, ...]
    reason: str
    open: bool


class Listed(NamedTuple):
    """A row of the table: ``since`` the first release that has the sink, ``until`` the last."""

    sink: Sink
    verdict: Verdict
    since: tuple[int, int]
    until: tuple[int, int]


@cache
def table() -> tuple[Listed, ...]:
    """All rows. Raises ValueError for a line that is none, and OSError."""
    with open(_TABLE, encoding="utf-8") as file:
        return tuple(_parsed(line.rstrip("\n") for line in file))


def _parsed(lines: Iterable[str]) -> Iterator[Listed]:
    verdict = None
    for line in lines:
        if not line or line.startswith("#"):
            continue
        found = _ROW.fullmatch(line)
        if found is None:
            verdict = _verdict(line)
        elif verdict is None:
            raise ValueError(f"no verdict stands above {line!r}")
        else:
            yield _row(found, verdict)


def _verdict(line: str) -> Verdict:
    word, _, rest = line.partition(" ")
    if word == "hook":
        return Verdict(tuple(rest.split()), "", False)
    if word in ("none", "open") and rest:
        return Verdict((), rest, word == "open")
    raise ValueError(f"neither a row nor a verdict: {line!r}")


def _row(found: re.Match[str], verdict: Verdict) -> Listed:
    module, function, what, times, since, until = found.groups()
    distribution = module.partition("/")[0]
    major, minor = _LAST[distribution]
    first = release_of(since) if since else _FIRST[distribution]
    last = release_of(until or since) if since else (major, minor - 1)
    return Listed(Sink(module, function, what, int(times or 1)), verdict, first, last)


def release_of(version: str) -> tuple[int, int]:
    """The major and minor version; (0, 0), of which nothing is listed, for a text that has none."""
    digits = re.match(r"(\d+)\.(\d+)", version)
    return (int(digits[1]), int(digits[2])) if digits else (0, 0)


def listed(distribution: str, release: tuple[int, int]) -> dict[Sink, Verdict]:
    """The sinks of this release of torch or triton, and what comes of them."""
    return {
        row.sink: row.verdict
        for row in table()
        if row.sink.module.startswith(f"{distribution}/") and row.since <= release <= row.until
    }


def installed(distribution: str) -> list[Sink] | None:
    """What the installed torch or triton has; None if there is none. Imports neither; raises OSError."""
    spec = importlib.util.find_spec(distribution)
    if spec is None or not spec.submodule_search_locations:
        return None
    return scan(os.path.dirname(spec.submodule_search_locations[0]), distribution)


def differences(found: Sequence[Sink], known: Iterable[Sink]) -> tuple[list[Sink], list[Sink]]:
    """The sinks that are found and not known, and those that are known and not found."""
    unknown, vanished = set(found).difference(known), set(known).difference(found)
    return sorted(unknown), sorted(vanished)
