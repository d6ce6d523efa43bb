"""``safecache stats --html FILE``: a self-contained HTML page about a run, without scripts or external resources."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from safecache._version import __version__
from safecache.cli import explain, ls
from safecache.doctor.examination import examine
from safecache.errors import printable
from safecache.history import run_summary
from safecache.history.run_summary import LABELS, Line, Summary
from safecache.settings import timestamps
from safecache.settings.units import write_size
from safecache.store.groups import KINDS
from safecache.upkeep import catalogue

__all__ = ["render"]

_MOST_MISSES = 100
_MOST_ENTRIES = 10


def render(directories: Sequence[str], lines: Sequence[Line], summary: Summary, said: Mapping[str, Any]) -> str:
    """The page as HTML, of these caches and of what their journals say; ``said``: what stats says too. Raises OSError.

    Names and texts are untrusted: markup in them is escaped, control characters made visible.
    """
    environment = Environment(
        loader=PackageLoader("safecache.cli", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    of_run = [line for line in lines if summary.run in (run_summary.ALL, line.run)]
    return environment.get_template("report.html.j2").render(
        version=__version__,
        run=summary.run,
        start=timestamps.write(min(line.time for line in of_run)),
        end=timestamps.write(max(line.time for line in of_run)),
        hosts=sorted({line.host for line in of_run}),
        directories=directories,
        processes=summary.by_process,
        **said,
        misses=_misses(summary.missed, explain.causes(directories)),
        most_misses=_MOST_MISSES,
        **_entries(directories),
        # Last, since it treats unusable settings as unset.
        findings=[finding for finding in examine(import_torch=False) if finding.severity != "ok"],
    )


def _misses(lines: Iterable[Line], causes: Mapping[str, str]) -> list[dict[str, Any]]:
    """The misses and bypasses, with equal ones merged, the most frequent first, and otherwise in order of time.

    ``causes``: by cache key, how it differs from the nearest one.
    """
    alike: Counter[tuple[str, str, str, str]] = Counter()
    ranks: dict[tuple[str, str, str, str], set[str]] = {}
    for line in lines:
        same = line.label, line.name or line.key, line.frame, line.detail or causes.get(line.key, "")
        alike[same] += 1
        ranks.setdefault(same, set()).add(line.rank)
    found = []
    for same, times in alike.most_common():
        label, name, frame, detail = same
        kind, outcome, reason = LABELS[label]
        what = f"{outcome.value}: {reason.value}" if reason else outcome.value
        row = {"cache": kind.cache, "name": name, "frame": frame, "what": what, "detail": detail, "times": times}
        found.append({**row, "ranks": sorted(ranks[same] - {""})})
    return found


def _entries(directories: Sequence[str]) -> dict[str, Any]:
    """The biggest entries, the least recently used, and the number of all entries with their size."""
    found = catalogue.take(directories, {KINDS[word] for word in ls.USUAL})
    by_size = sorted(found.items, key=lambda item: (-item.size, item.group.name))[:_MOST_ENTRIES]
    by_use = sorted(found.items, key=lambda item: (item.used, item.group.name))[:_MOST_ENTRIES]
    now = time.time()
    biggest, oldest = (
        [ls.cells(row, row.item.group.name, now) for row in ls.describe(items, found)] for items in (by_size, by_use)
    )
    size = write_size(sum(item.size for item in found.items))
    return {"biggest": biggest, "oldest": oldest, "entries": len(found.items), "size": size}
