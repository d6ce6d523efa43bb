"""``safecache stats --html FILE``: a self-contained HTML page about a run, without scripts or external resources."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from safecache._version import __version__
from safecache.cli import explain, ls, stats
from safecache.cli.view import View
from safecache.doctor.examination import examine
from safecache.doctor.finding import Finding
from safecache.errors import printable
from safecache.history import run_summary
from safecache.history.lookups import Time
from safecache.history.run_summary import Line, Process, Shared, Summary
from safecache.ports import Outcome
from safecache.reporting.kinds import LOOKED_UP, Kind
from safecache.settings import timestamps
from safecache.settings.units import write_age, write_size
from safecache.store import entry_files
from safecache.store.groups import KINDS
from safecache.upkeep import catalogue

__all__ = ["CacheFacts", "Entry", "Facts", "Miss", "ReasonFacts", "gather", "render", "write"]

_MOST_MISSES = 100
_MOST_ENTRIES = 10


class ReasonFacts(NamedTuple):
    """How many lookups had an outcome for one reason."""

    outcome: str
    reason: str
    lookups: int


class CacheFacts(NamedTuple):
    """The lookups in one cache. ``reasons``: of those that were no hits, the most frequent first."""

    name: str
    hits: int
    misses: int
    bypasses: int
    reasons: tuple[ReasonFacts, ...]

    @property
    def lookups(self) -> int:
        """The number of all lookups."""
        return self.hits + self.misses + self.bypasses


class Miss(NamedTuple):
    """A miss or bypass that occurred ``times`` times with the same text. ``ranks``: of the processes that have one."""

    cache: str
    name: str
    frame: str
    ranks: tuple[str, ...]
    what: str
    detail: str
    times: int


class Entry(NamedTuple):
    """A group of files in a cache, as text; ``key`` is not shortened."""

    name: str
    key: str
    kind: str
    size: str
    age: str
    used: str
    build: str
    seal: str


class Facts(NamedTuple):
    """What the page shows. ``spent``, ``saved``: the time spent on compiles that were saved, and spared by hits.

    ``start``, ``end``: of the run, as far as the journal has it. ``all_misses``: their number; ``misses`` is capped.
    ``by_process``: those that took longest. ``total``: how many groups the caches have, and their size.
    ``remote``: what the remote tier gave and cost, "" without one.
    ``flights``: what was compiled once for several processes, "" if nothing was; ``shared``: the largest of that.
    ``recompiled``: what hits came to that were to be compiled again, "" if none were.
    """

    run: str
    start: str
    end: str
    processes: int
    by_process: tuple[Process, ...]
    hosts: tuple[str, ...]
    directories: tuple[str, ...]
    caches: tuple[CacheFacts, ...]
    spent: str
    saved: str
    remote: str
    flights: str
    recompiled: str
    shared: tuple[Shared, ...]
    misses: tuple[Miss, ...]
    all_misses: int
    biggest: tuple[Entry, ...]
    oldest: tuple[Entry, ...]
    total: tuple[int, str]
    findings: tuple[Finding, ...]


def gather(directories: Sequence[str], run: str) -> Facts | None:
    """Collect the facts; None if the run has no journal. Raises OSError for a directory that cannot be read."""
    lines = [line for directory in directories for line in run_summary.read(directory)]
    summary = run_summary.summarise(lines, run)
    if summary is None:
        return None
    of_run = [line for line in lines if run == run_summary.ALL or line.run == summary.run]
    misses = _misses(summary.missed, explain.causes(directories))
    biggest, oldest, total = _entries(directories)
    shared = list(run_summary.find_shared(lines, summary.run).values())
    return Facts(
        run=summary.run,
        start=timestamps.write(min(line.time for line in of_run)),
        end=timestamps.write(max(line.time for line in of_run)),
        processes=summary.processes,
        by_process=tuple(summary.by_process[: stats.MOST_PROCESSES]),
        hosts=tuple(sorted({line.host for line in of_run})),
        directories=tuple(directories),
        caches=tuple(_cache(kind, summary) for kind in LOOKED_UP),
        spent=stats.seconds(summary, Time.SPENT),
        saved=stats.seconds(summary, Time.SAVED),
        remote=stats.remote(summary),
        flights=stats.flights(summary, shared),
        recompiled=stats.recompiled(summary),
        shared=tuple(shared[: stats.MOST_SHARED]),
        misses=misses[:_MOST_MISSES],
        all_misses=len(misses),
        biggest=biggest,
        oldest=oldest,
        total=total,
        # Last, since it treats unusable settings as unset.
        findings=tuple(finding for finding in examine(import_torch=False) if finding.severity != "ok"),
    )


_LABELS = run_summary.labels()


def _cache(kind: Kind, summary: Summary) -> CacheFacts:
    found = [(*_LABELS[what][1:], count) for what, count in summary.counts.items() if _LABELS[what][0] is kind]
    hits, misses, bypasses = (sum(count for each, _, count in found if each is outcome) for outcome in Outcome)
    reasons = [ReasonFacts(outcome.value, reason.value, count) for outcome, reason, count in found if reason]
    reasons.sort(key=lambda each: (-each.lookups, each.outcome, each.reason))
    return CacheFacts(kind.cache, hits, misses, bypasses, tuple(reasons))


def _misses(lines: Iterable[Line], causes: Mapping[str, str]) -> tuple[Miss, ...]:
    """The misses, with equal ones merged, the most frequent first, and otherwise in order of time.

    ``causes``: by cache key, how it differs from the nearest one.
    """
    alike: Counter[tuple[str, str, str, str]] = Counter()
    ranks: dict[tuple[str, str, str, str], set[str]] = {}
    for line in lines:
        same = line.label, line.name or line.key, line.frame, line.detail or causes.get(line.key, "")
        alike[same] += 1
        ranks.setdefault(same, set()).add(line.rank)
    return tuple(
        Miss(_LABELS[label][0].cache, name, frame, tuple(sorted(ranks[same] - {""})), _what(label), detail, times)
        for same, times in alike.most_common()
        for label, name, frame, detail in [same]
    )


def _what(label: str) -> str:
    _, outcome, reason = _LABELS[label]
    return f"{outcome.value}: {reason.value}" if reason else outcome.value


def _entries(directories: Sequence[str]) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[int, str]]:
    """The biggest entries, the least recently used, and the number of all entries with their size."""
    found = catalogue.take(directories, {KINDS[word] for word in ls.USUAL})
    by_size = sorted(found.items, key=lambda item: (-item.size, item.group.name))[:_MOST_ENTRIES]
    by_use = sorted(found.items, key=lambda item: (item.used, item.group.name))[:_MOST_ENTRIES]
    total = len(found.items), write_size(sum(item.size for item in found.items))
    return _described(by_size, found), _described(by_use, found), total


def _described(items: Sequence[catalogue.Item], found: catalogue.Catalogue) -> tuple[Entry, ...]:
    now = time.time()
    return tuple(_entry(row, now) for row in ls.describe(items, found))


def _entry(row: ls.Row, now: float) -> Entry:
    item, said = row
    versions = [f"{what} {version}" for what, version in (("torch", said.torch), ("triton", said.triton)) if version]
    return Entry(
        name=said.name,
        key=item.group.name,
        kind=item.group.kind.word,
        size=write_size(item.size),
        age=write_age(max(0.0, now - item.made)),
        used=write_age(max(0.0, now - item.used)),
        build=" ".join([*versions, said.gpu]).strip(),
        seal=ls.state(said),
    )


def render(facts: Facts) -> str:
    """The page as HTML. Names and texts are untrusted: markup in them is escaped, control characters made visible."""
    environment = Environment(
        loader=PackageLoader("safecache.cli", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    lookups, hits = (
        sum(numbers) for numbers in zip(*((each.lookups, each.hits) for each in facts.caches), strict=True)
    )
    return environment.get_template("report.html.j2").render(
        facts=facts, version=__version__, lookups=lookups, hits=hits
    )


def write(path: str, directories: Sequence[str], run: str) -> View:
    """Write the page about a run that has a journal. Raises OSError."""
    found, path = gather(directories, run), os.path.abspath(path)
    assert found is not None, "it has a journal"
    entry_files.replace(path, render(found).encode())
    return View(None, [f"report written to {path}"])
