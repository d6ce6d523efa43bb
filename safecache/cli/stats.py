"""``safecache stats``: the lookups of all processes of a run by cache, outcome and reason, and what missed."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from safecache.cli.arguments import add_directories, add_json, find_caches
from safecache.cli.view import Heading, Table, View
from safecache.errors import SafecacheError
from safecache.history import Time, run_summary, time_label
from safecache.history.run_summary import ALL, LABELS, LAST, OBSERVED, TIMES, Line, Process, Shared, Summary
from safecache.places import layout
from safecache.ports import Outcome
from safecache.reporting import policy
from safecache.reporting.kinds import LOOKED_UP, OF_FLIGHTS, OF_RECOMPILE_CHECK, OF_REMOTE, Count, Kind, Reason
from safecache.settings import config, timestamps
from safecache.settings.units import write_size
from safecache.store import entry_files

__all__ = ["add", "render_page", "run"]

_MOST_PROCESSES = 64
_MOST_SHARED = 20
_MOST_OTHERS = 3
_BAR = 20  # letters


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_directories(parser)
    choice = f"the run: its id, {LAST} (the default) for the latest, or {ALL}"
    parser.add_argument("--run", default=LAST, metavar="ID", help=choice)
    what = parser.add_mutually_exclusive_group()
    text = "write all of it, the largest entries and the findings of doctor as a page to send to somebody"
    what.add_argument("-o", "--html", metavar="FILE", help=text)
    add_json(what)


def run(arguments: argparse.Namespace) -> View:
    """Sum up a run, or write the page. Raises SafecacheError if the run has no journal, and OSError."""
    directories = _places(arguments)
    lines = [line for directory in directories for line in run_summary.read(directory)]
    summary = run_summary.summarise(lines, arguments.run)
    if summary is None:
        where = ", ".join(directories) or "any cache directory"
        raise SafecacheError(f"no journal of run {arguments.run} in {where}")
    if arguments.html:
        path = os.path.abspath(arguments.html)
        entry_files.replace(path, render_page(directories, lines, summary).encode())
        return View(None, [f"report written to {path}"])
    shared = list(run_summary.find_shared(lines, summary.run).values())
    others = [] if summary.run == ALL else sorted({line.run for line in lines} - {summary.run})
    return View(_report(summary, shared) | {"other_runs": others}, _text(summary, shared, others))


def render_page(directories: Sequence[str], lines: Sequence[Line], summary: Summary) -> str:
    """The page as HTML, of these caches and of what their journals say. Raises OSError."""
    from safecache.cli import report  # which imports jinja2

    shared = list(run_summary.find_shared(lines, summary.run).values())
    said = {
        "caches": {kind.cache: _lookups(kind, summary.lookups) for kind in LOOKED_UP},
        "most_processes": _MOST_PROCESSES,
        "spent": _seconds(summary, Time.SPENT),
        "saved": _seconds(summary, Time.SAVED),
        "flights": _flights(summary, shared),
        "shared": shared[:_MOST_SHARED],
        "recompiled": _recompiled(summary),
        "remote": _remote(summary),
    }
    return report.render(directories, lines, summary, said)


def _places(arguments: argparse.Namespace) -> list[str]:
    """The caches whose journals are read: those that were named, or this environment's, and vLLM's below them.

    A process has one journal, beside what Inductor compiles: of Triton's own directory that is in another.
    """
    triton = os.path.realpath(layout.triton_cache_dir(config.child_environment()))
    if [os.path.realpath(name) for name in arguments.directories] == [triton]:
        arguments.directories = []
    return find_caches(arguments)


def _report(summary: Summary, shared: list[Shared]) -> dict[str, Any]:

    def counted(those: Iterable[Count | Reason]) -> dict[str, int]:
        return {each.name.lower(): summary.counts[each.value] for each in those}

    times = {label: number for label, number in sorted(summary.counts.items()) if label in TIMES}
    return {
        "run": summary.run,
        "processes": len(summary.by_process),
        "layers": {kind.word: _lookups(kind, summary.lookups) for kind in LOOKED_UP},
        "seconds": {label.replace(" ms ", " "): round(ms / 1000, 3) for label, ms in times.items()},
        "single_flight": {**counted(OF_FLIGHTS), "compiles": [each.as_json() for each in shared]},
        "recompile_check": counted(OF_RECOMPILE_CHECK),
        "would_be_refused": {label: n for label, n in sorted(summary.counts.items()) if label in OBSERVED},
        "observed": [{"file": line.key, "why": line.label, "detail": line.detail} for line in summary.passed],
        "remote": counted(OF_REMOTE),
        "by_process": [each._asdict() for each in summary.by_process],
        "effect": dict(zip(("verified", "refused", "seconds_spared"), _effect(summary), strict=True)),
        "missed": [dict(line._asdict(), time=timestamps.write(line.time), counts=None) for line in summary.missed],
    }


def _effect(summary: Summary) -> tuple[int, int, float]:
    """The hits, all of which were verified; the lookups that refused what was there, and missed; the seconds spared."""
    refused = 0
    for label, number in summary.lookups.items():
        _, outcome, reason = LABELS[label]
        if outcome is Outcome.MISS and reason is not None and policy.decide(reason, strict=False).warn:
            refused += number
    return summary.hits, refused, run_summary.seconds(summary.counts, Time.SAVED)


def _lookups(kind: Kind, counts: Counter[str]) -> dict[str, Any]:
    """The lookups in one cache: how many, by outcome, and by reason for what was no hit."""
    rows = [(outcome, reason, n) for what, n in counts.items() for on, outcome, reason in [LABELS[what]] if on is kind]
    by_outcome = {outcome.value: sum(n for each, _, n in rows if each is outcome) for outcome in Outcome}
    reasons = {f"{outcome.value}: {reason.value}": n for outcome, reason, n in rows if reason is not None}
    return {"lookups": sum(by_outcome.values()), **by_outcome, "reasons": dict(sorted(reasons.items()))}


def _text(summary: Summary, shared: list[Shared], others: list[str]) -> Iterator[str | Table]:
    yield f"run {summary.run}, processes: {len(summary.by_process)}"
    outcomes = ["lookups", *(outcome.value for outcome in Outcome)]
    rows = {kind.word: _lookups(kind, summary.lookups) for kind in LOOKED_UP}
    yield Table(
        [Heading("cache"), *_numbers(*outcomes), Heading("reasons", folds=True)],
        [
            (
                word,
                *(str(row[name]) for name in outcomes),
                ", ".join(f"{n} {reason}" for reason, n in row["reasons"].items()),
            )
            for word, row in rows.items()
        ],
    )
    yield f"compiling: {_seconds(summary, Time.SPENT)} spent on what was saved"
    if any(each.seconds for each in summary.by_process):
        yield _by_process(summary.by_process)
    said = {
        "remote": _remote(summary),
        "single flight": _flights(summary, shared),
        "recompile check": _recompiled(summary),
    }
    yield from (f"{what}: {text}" for what, text in said.items() if text)
    if shared:
        yield _shared(shared)
    if summary.missed or summary.passed:
        yield _missed([*summary.missed, *summary.passed])
    hits, refused, spared = _effect(summary)
    done = f"{hits} hits verified"
    observed = sum(n for label, n in summary.counts.items() if label in OBSERVED)
    if observed:
        done = f"{hits} hits, {observed} files used that SAFECACHE=1 refuses"
    yield f"effect: {done}, {refused} lookups refused what was there, {spared:.1f} s of compiling spared"
    if others:
        shown = ", ".join(others[-_MOST_OTHERS:])
        yield f"other runs recorded here: {len(others)}, among them {shown}. Show them with --run ID or --run {ALL}"


def _numbers(*names: str) -> Iterator[Heading]:
    return (Heading(name, right=True) for name in names)


def _remote(summary: Summary) -> str:
    """What the remote tier gave and cost, in words; "" if there was none."""
    count = {each: summary.counts[each.value] for each in OF_REMOTE}
    if not any(count.values()):
        return ""
    sent = f"{count[Count.REMOTE_SENT]} groups sent ({write_size(count[Count.REMOTE_GIVEN])})"
    unsent = f", {count[Count.REMOTE_UNSENT]} not sent" if count[Count.REMOTE_UNSENT] else ""
    left = f", left alone {count[Count.REMOTE_LEFT]} times" if count[Count.REMOTE_LEFT] else ""
    return (
        f"{count[Count.REMOTE_HIT]} groups fetched ({write_size(count[Count.REMOTE_RECEIVED])}), "
        f"{count[Count.REMOTE_MISS]} not there, {sent}{unsent}; {count[Count.REMOTE_ASKED]} requests, "
        f"{count[Count.REMOTE_WAITED] / 1e6:.3f} s waited for them{left}"
    )


def _flights(summary: Summary, shared: list[Shared]) -> str:
    """What was compiled once for several processes, in words; "" if nothing was."""
    left, vain = (summary.counts[each.value] for each in OF_FLIGHTS)
    if not left and not vain:
        return ""
    waited = sum(summary.counts[time_label(kind, Time.WAITED)] for kind in LOOKED_UP) / 1000
    in_vain = f", and {vain} times in vain" if vain else ""
    compiling = sum(each.compiling for each in shared)
    spared = f" in place of {compiling:.1f} s of compiling" if shared else ""
    return f"{left} compiles left to other processes, {waited:.1f} s waited for them{spared}{in_vain}"


def _recompiled(summary: Summary) -> str:
    """What the hits came to that were to be compiled again, in words; "" if none were."""
    counts = [(summary.counts[each.value], each.value) for each in OF_RECOMPILE_CHECK]
    return ", ".join(f"{number} {what}" for number, what in counts) if any(number for number, _ in counts) else ""


def _seconds(summary: Summary, which: Time) -> str:
    """How long, in words."""
    return f"{run_summary.seconds(summary.counts, which):.1f} s"


def _by_process(processes: list[Process]) -> Table:
    """A row for each, with a bar of how long that took, to the scale of the longest."""
    numbers = _numbers("compiling", "waiting", "in hits", "hits", "lookups")
    longest, rows = max(each.seconds for each in processes), []
    for each in processes[:_MOST_PROCESSES]:
        parts = each.compiled, each.waited, each.in_hits
        drawn = "".join(letter * round(_BAR * part / longest) for letter, part in zip("cwh", parts, strict=True))
        figures = (*(f"{part:.1f} s" for part in parts), str(each.hits), str(each.lookups))
        rows.append((f"{each.pid} on {each.host}", each.rank, *figures, drawn))
    return Table([Heading("process"), Heading("rank"), *numbers, Heading("c w h")], rows)


def _shared(shared: list[Shared]) -> Table:
    """A row for each compile that others waited for."""
    texts = (Heading("cache"), Heading("name", folds=True), Heading("compiled by"))
    rows = [
        (each.layer, each.name or each.key, each.by, f"{each.took:.1f} s", str(each.processes), f"{each.waited:.1f} s")
        for each in shared[:_MOST_SHARED]
    ]
    return Table([*texts, *_numbers("took", "processes", "waited")], rows)


def _missed(lines: list[Line]) -> Table:
    alike = Counter((line.label, line.name or line.key, line.frame, line.rank, line.detail) for line in lines)
    rows = [(*texts, str(times), detail) for (*texts, detail), times in alike.items()]
    texts = (Heading("what"), Heading("name", folds=True), Heading("frame", folds=True), Heading("rank"))
    return Table([*texts, *_numbers("times"), Heading("detail", folds=True)], rows)
