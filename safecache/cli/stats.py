"""``safecache stats`` and ``explain``: what the processes of a run have looked up, what missed, and why."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from safecache._version import __version__
from safecache.cli import ls
from safecache.cli.view import DIRECTORY_HELP, Heading, Table, View, add_directories, add_json, find_caches
from safecache.doctor import examine_machine
from safecache.errors import SafecacheError, make_printable
from safecache.explain import explanations, key_records
from safecache.explain.explanations import Explanation
from safecache.explain.key_records import KeyRecord
from safecache.history import Time, make_time_label, run_summary
from safecache.history.run_summary import ALL, LABELS, LAST, OBSERVED, TIMES, Line, Process, Shared, Summary
from safecache.places import layout
from safecache.ports import Outcome
from safecache.reporting import events
from safecache.reporting.kinds import LOOKED_UP, OF_FLIGHTS, OF_RECOMPILE_CHECK, OF_REMOTE, Count, Kind, Reason
from safecache.settings import config, units
from safecache.settings.units import write_count, write_size
from safecache.store import entry_files
from safecache.store.groups import KINDS
from safecache.tiers import levels
from safecache.upkeep import catalogue

__all__ = ["add_explain", "add_stats", "render_page", "run_explain", "run_stats"]

_MOST_PROCESSES = 64
_MOST_SHARED = 20
_MOST_OTHERS = 3
_BAR = 20  # letters
_MOST_MISSES = 100
_MOST_ENTRIES = 10
_MOST_RUNS = 10


def add_stats(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_directories(parser)
    choice = f"job run: its id, {LAST} (default) for the latest, or {ALL}"
    parser.add_argument("--run", default=LAST, metavar="ID", help=choice)
    what = parser.add_mutually_exclusive_group()
    text = "write an HTML report instead, with the largest entries and the findings of doctor"
    what.add_argument("-o", "--html", metavar="FILE", help=text)
    add_json(what)


def run_stats(arguments: argparse.Namespace) -> View:
    """Sum up a run, or write the page. Raises SafecacheError if the run has no journal, and OSError."""
    # A process has one journal, beside what Inductor compiles: of Triton's own directory that is in another.
    triton = os.path.realpath(layout.triton_cache_dir(config.copy_environment()))
    if [os.path.realpath(name) for name in arguments.directories] == [triton]:
        arguments.directories = []
    directories = find_caches(arguments)
    lines = [line for directory in directories for line in run_summary.read_unverified(directory)]
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
    return View(_report_summary(summary, shared) | {"other_runs": others}, _format_summary(summary, shared, others))


def _report_summary(summary: Summary, shared: list[Shared]) -> dict[str, Any]:

    def select_counts(those: Iterable[Count | Reason]) -> dict[str, int]:
        return {each.name.lower(): summary.counts[each.value] for each in those}

    times = {label: number for label, number in sorted(summary.counts.items()) if label in TIMES}
    return {
        "run": summary.run,
        "processes": len(summary.by_process),
        "layers": {kind.word: _count_lookups(kind, summary.lookups) for kind in LOOKED_UP},
        "seconds": {label.replace(" ms ", " "): round(ms / 1000, 3) for label, ms in times.items()},
        "single_flight": {**select_counts(OF_FLIGHTS), "compiles": [each.make_json() for each in shared]},
        "recompile_check": select_counts(OF_RECOMPILE_CHECK),
        "would_be_refused": {label: n for label, n in sorted(summary.counts.items()) if label in OBSERVED},
        "observed": [{"file": line.key, "why": line.label, "detail": line.detail} for line in summary.passed],
        "remote": select_counts(OF_REMOTE),
        "by_process": [each._asdict() for each in summary.by_process],
        "effect": dict(
            zip(("hits", "would_be_refused", "refused", "seconds_spared"), _measure_effect(summary), strict=True)
        ),
        "missed": [dict(line._asdict(), time=units.write_time(line.time), counts=None) for line in summary.missed],
    }


def _measure_effect(summary: Summary) -> tuple[int, int, int, float]:
    """The hits; files used that SAFECACHE=1 refuses; lookups that refused what was there; seconds spared."""
    refused = 0
    for label, number in summary.lookups.items():
        _, outcome, reason = LABELS[label]
        if outcome is Outcome.MISS and reason is not None and events.decide_action(reason, strict=False).warn:
            refused += number
    observed = sum(n for label, n in summary.counts.items() if label in OBSERVED)
    return summary.hits, observed, refused, run_summary.find_seconds(summary.counts, Time.SAVED)


def _count_lookups(kind: Kind, counts: Counter[str]) -> dict[str, Any]:
    """The lookups in one cache: how many, by outcome, and by reason for what was no hit."""
    rows = [(outcome, reason, n) for what, n in counts.items() for on, outcome, reason in [LABELS[what]] if on is kind]
    by_outcome = {outcome.value: sum(n for each, _, n in rows if each is outcome) for outcome in Outcome}
    reasons = {f"{outcome.value}: {reason.value}": n for outcome, reason, n in rows if reason is not None}
    return {"lookups": sum(by_outcome.values()), **by_outcome, "reasons": dict(sorted(reasons.items()))}


def _format_summary(summary: Summary, shared: list[Shared], others: list[str]) -> Iterator[str | Table]:
    yield f"run {summary.run}, processes: {len(summary.by_process)}"
    outcomes = ["lookups", *(outcome.value for outcome in Outcome)]
    rows = {kind.word: _count_lookups(kind, summary.lookups) for kind in LOOKED_UP}
    yield Table(
        [Heading("cache"), *_make_headings(*outcomes), Heading("reasons", folds=True)],
        [
            (
                word,
                *(str(row[name]) for name in outcomes),
                ", ".join(f"{n} {reason}" for reason, n in row["reasons"].items()),
            )
            for word, row in rows.items()
        ],
    )
    yield f"compiling: {_format_seconds(summary, Time.SPENT)} spent on what was saved"
    if any(each.seconds for each in summary.by_process):
        yield _make_process_table(summary.by_process)
    said = {
        "remote": _describe_remote(summary),
        "single flight": _describe_flights(summary, shared),
        "recompile check": _describe_recompiled(summary),
    }
    yield from (f"{what}: {text}" for what, text in said.items() if text)
    if shared:
        yield _make_shared_table(shared)
    if summary.missed or summary.passed:
        yield _make_missed_table([*summary.missed, *summary.passed])
    hits, observed, refused, spared = _measure_effect(summary)
    used = f", {write_count(observed, 'file')} used that SAFECACHE=1 refuses" if observed else " verified"
    refusing = f"{write_count(refused, 'lookup')} refused what was there"
    yield f"effect: {write_count(hits, 'hit')}{used}, {refusing}, {spared:.1f} s of compiling spared"
    if others:
        shown = ", ".join(others[-_MOST_OTHERS:])
        yield f"other runs recorded here: {len(others)}, among them {shown}. Show them with --run ID or --run {ALL}"


def _make_headings(*names: str) -> Iterator[Heading]:
    return (Heading(name, right=True) for name in names)


def _describe_remote(summary: Summary) -> str:
    """Describe what the remote tier gave and cost; "" if there was none."""
    count = {each: summary.counts[each.value] for each in OF_REMOTE}
    if not any(count.values()):
        return ""
    sent = f"{write_count(count[Count.REMOTE_SENT], 'group')} sent ({write_size(count[Count.REMOTE_GIVEN])})"
    unsent = f", {count[Count.REMOTE_UNSENT]} not sent" if count[Count.REMOTE_UNSENT] else ""
    left = f", left alone {write_count(count[Count.REMOTE_LEFT], 'time')}" if count[Count.REMOTE_LEFT] else ""
    return (
        f"{write_count(count[Count.REMOTE_HIT], 'group')} fetched ({write_size(count[Count.REMOTE_RECEIVED])}), "
        f"{count[Count.REMOTE_MISS]} not there, {sent}{unsent}; {write_count(count[Count.REMOTE_ASKED], 'request')}, "
        f"{count[Count.REMOTE_WAITED] / 1e6:.3f} s waited for them{left}"
    )


def _describe_flights(summary: Summary, shared: list[Shared]) -> str:
    """Describe what was compiled once for several processes; "" if nothing was."""
    left, vain = (summary.counts[each.value] for each in OF_FLIGHTS)
    if not left and not vain:
        return ""
    waited = sum(summary.counts[make_time_label(kind, Time.WAITED)] for kind in LOOKED_UP) / 1000
    in_vain = f", and {write_count(vain, 'time')} in vain" if vain else ""
    compiling = sum(each.avoided_seconds for each in shared)
    spared = f" in place of {compiling:.1f} s of compiling" if shared else ""
    return f"{write_count(left, 'compile')} left to other processes, {waited:.1f} s waited for them{spared}{in_vain}"


def _describe_recompiled(summary: Summary) -> str:
    """Describe the outcomes of the hits that were to be recompiled; "" if none were."""
    counts = [(summary.counts[each.value], each.value) for each in OF_RECOMPILE_CHECK]
    return ", ".join(f"{number} {what}" for number, what in counts) if any(number for number, _ in counts) else ""


def _format_seconds(summary: Summary, which: Time) -> str:
    """How long, in words."""
    return f"{run_summary.find_seconds(summary.counts, which):.1f} s"


def _make_process_table(processes: list[Process]) -> Table:
    """A row for each, with a bar of how long that took, to the scale of the longest."""
    numbers = _make_headings("compiling", "waiting", "in hits", "hits", "lookups")
    longest, rows = max(each.seconds for each in processes), []
    for each in processes[:_MOST_PROCESSES]:
        parts = each.compiled, each.waited, each.in_hits
        drawn = "".join(letter * round(_BAR * part / longest) for letter, part in zip("cwh", parts, strict=True))
        figures = (*(f"{part:.1f} s" for part in parts), str(each.hits), str(each.lookups))
        rows.append((f"{each.pid} on {each.host}", each.rank, *figures, drawn))
    return Table([Heading("process"), Heading("rank"), *numbers, Heading("c w h")], rows)


def _make_shared_table(shared: list[Shared]) -> Table:
    """A row for each compile that others waited for."""
    texts = (Heading("cache"), Heading("name", folds=True), Heading("compiled by"))
    rows = [
        (
            each.layer,
            each.name or each.key,
            each.compiling_process,
            f"{each.took:.1f} s",
            str(each.processes),
            f"{each.waited:.1f} s",
        )
        for each in shared[:_MOST_SHARED]
    ]
    return Table([*texts, *_make_headings("took", "processes", "waited")], rows)


def _make_missed_table(lines: list[Line]) -> Table:
    alike = Counter((line.label, line.name or line.key, line.frame, line.rank, line.detail) for line in lines)
    rows = [(*texts, str(times), detail) for (*texts, detail), times in alike.items()]
    texts = (Heading("what"), Heading("name", folds=True), Heading("frame", folds=True), Heading("rank"))
    return Table([*texts, *_make_headings("times"), Heading("detail", folds=True)], rows)


def render_page(directories: Sequence[str], lines: Sequence[Line], summary: Summary) -> str:
    """A page without scripts or external resources, of these caches and of what their journals say. Raises OSError.

    Names and texts are untrusted: markup in them is escaped, control characters made visible.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only a page needs it, and it takes long to import

    environment = Environment(
        loader=PackageLoader("safecache.cli", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: make_printable(value) if type(value) is str else value,
    )
    of_run = [line for line in lines if summary.run in (run_summary.ALL, line.run)]
    shared = list(run_summary.find_shared(lines, summary.run).values())
    return environment.get_template("report.html.j2").render(
        version=__version__,
        Reason=Reason,
        write_count=write_count,
        run=summary.run,
        start=units.write_time(min(line.time for line in of_run)),
        end=units.write_time(max(line.time for line in of_run)),
        hosts=sorted({line.host for line in of_run}),
        directories=directories,
        processes=summary.by_process,
        most_processes=_MOST_PROCESSES,
        caches={kind.cache: _count_lookups(kind, summary.lookups) for kind in LOOKED_UP},
        spent=_format_seconds(summary, Time.SPENT),
        saved=_format_seconds(summary, Time.SAVED),
        flights=_describe_flights(summary, shared),
        shared=shared[:_MOST_SHARED],
        runs=list(_list_runs(lines)),
        recompiled=_describe_recompiled(summary),
        remote=_describe_remote(summary),
        misses=_list_misses(summary.missed, directories),
        most_misses=_MOST_MISSES,
        **_list_entries(directories),
        # Last, since it treats unusable settings as unset.
        findings=[finding for finding in examine_machine(import_torch=False) if finding.severity != "ok"],
    )


def _list_runs(lines: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """List the latest runs, the newest first: when each started, and the sums over its processes."""
    by_run: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.time):
        by_run.setdefault(line.run, []).append(line)
    for of_run in sorted(by_run.values(), key=lambda each: -each[-1].time)[:_MOST_RUNS]:
        summary = run_summary.summarise(of_run, run_summary.ALL)
        if summary is not None:
            yield {
                "run": of_run[0].run,
                "start": units.write_time(of_run[0].time),
                "processes": len(summary.by_process),
                "lookups": summary.lookups.total(),
                "hits": summary.hits,
                "spent": _format_seconds(summary, Time.SPENT),
            }


def _list_misses(lines: Iterable[Line], directories: Iterable[str]) -> list[dict[str, Any]]:
    """The misses and bypasses, with equal ones merged, the most frequent first, and otherwise in order of time."""
    levels.find_shared_cache(config.copy_environment())
    # How keys that missed differ from the nearest ones, as far as that is recorded.
    rows = _explain_caches(directories, "", None)
    causes = {row["key"]: row["cause"] for row in rows if row["reason"] == Reason.KEY_DIFFERS.value}
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


def _list_entries(directories: Sequence[str]) -> dict[str, Any]:
    """The biggest entries, the least recently used, and the number of all entries with their size."""
    found = catalogue.list_items(directories, {KINDS[word] for word in ls.USUAL})
    by_size = sorted(found.items, key=lambda item: (-item.size, item.group.name))[:_MOST_ENTRIES]
    by_use = sorted(found.items, key=lambda item: (item.used, item.group.name))[:_MOST_ENTRIES]
    now = time.time()
    biggest, oldest = (
        [ls.format_cells(row, row.item.group.name, now) for row in ls.describe_items(items, found)]
        for items in (by_size, by_use)
    )
    size = write_size(sum(item.size for item in found.items))
    return {"biggest": biggest, "oldest": oldest, "entries": len(found.items), "size": size}


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("what", nargs="?", metavar="NAME|KEY", help="function, kernel or key, or a part of it")
    parser.add_argument("--dir", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
    parser.add_argument("--run", metavar="ID", help="only misses of this job run")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="number of misses, latest first (default 20)")
    add_json(parser)


def run_explain(arguments: argparse.Namespace) -> View:
    """Explain the misses, the latest first; 1 if there is none. Raises OSError."""
    environ = config.copy_environment()
    shared = levels.find_shared_cache(environ)
    roots = arguments.directories or levels.list_caches(environ)
    if shared is not None and not arguments.directories and os.path.isdir(shared):
        roots = [*roots, shared]
    places = arguments.directories or [*roots, layout.vllm_cache_dir(environ)]
    for root in roots:
        os.scandir(root).close()
    roots = [*roots, *(cache for place in places for cache in layout.find_vllm_caches(place))]
    found = list(_explain_caches(roots, arguments.what or "", arguments.run))
    found = sorted(found, key=lambda row: str(row["time"]), reverse=True)[: arguments.last]
    factors = [] if arguments.what or arguments.run else [row for place in places for row in _explain_vllm(place)]
    lines = [f"{row['time']} {row['text']}" for row in found]
    lines += [f"vLLM {row['directory']}: {row['text']} (against {row['against']})" for row in factors]
    return View({"misses": found, "vllm": factors}, lines or ["nothing is recorded of misses here"], int(not lines))


def _explain_caches(roots: Iterable[str], what: str, of_run: str | None) -> Iterator[dict[str, Any]]:
    """List the records of these caches and of Triton's in them; a record that two levels have comes once."""
    told: set[tuple[Kind, str]] = set()
    for root in roots:
        for cache in layout.find_triton_caches(root):
            yield from _explain_cache(cache, what, of_run, told)


def _explain_cache(root: str, what: str, of_run: str | None, told: set[tuple[Kind, str]]) -> Iterator[dict[str, Any]]:
    """Explain misses by the journal, and what it lacks by the records alone, if they are not ``told``."""
    records = {(record.kind, record.key): record for record in key_records.list_records(root)}
    lines = run_summary.read_unverified(root)
    shared = run_summary.find_shared(lines)
    for line in reversed(lines):
        if of_run not in (None, line.run) or not (what in line.name or line.key.startswith(what)):
            continue
        kind, outcome, reason = LABELS.get(line.label, (None, None, None))
        if kind is not None and outcome is Outcome.MISS and reason is not None:
            told.add((kind, line.key))
            record = records.pop((kind, line.key), None)
            explanation = explanations.explain(record, root, saved=True) if record else None
            yield _describe_miss(line, kind, reason, explanation, shared.get((line.key, line.time)))
    if of_run is None:
        for record in (record for key, record in records.items() if key not in told):
            if what in record.name or record.key.startswith(what):
                yield _make_row(record, explanations.explain(record, root, saved=True))
        told.update(records)


def _make_row(record: KeyRecord, explanation: Explanation) -> dict[str, Any]:
    nearest = explanation.nearest
    return {
        "layer": record.kind.word,
        "key": record.key,
        "name": record.name,
        "time": units.write_time(record.made),
        "reason": "refused" if explanation.refused else explanation.absence.value,
        "cause": explanation.cause,
        "text": str(explanation),
        "nearest": nearest and {"key": nearest.key, "name": nearest.name, "time": units.write_time(nearest.made)},
        "differences": [difference._asdict() for difference in explanation.differences],
    }


def _describe_miss(
    line: Line, kind: Kind, reason: Reason, explanation: Explanation | None, shared: Shared | None
) -> dict[str, Any]:
    """Describe a miss as the journal has it, with the differences of its key, and who waited for the compile."""
    said = f"{reason.value} {line.detail}".strip()
    stated: dict[str, Any] = {
        "layer": kind.word,
        "key": line.key,
        "name": line.name,
        "run": line.run,
        "reason": reason.value,
    }
    stated |= {"time": units.write_time(line.time), "host": line.host, "pid": line.pid}
    stated |= {"shared": shared and shared.make_json()}
    waits = f"; {shared}" if shared is not None else ""
    if explanation is None:
        text = f"{kind.word} {line.name or line.key}: {said}{waits}"
        return {**stated, "cause": said, "text": text, "nearest": None, "differences": []}
    row = _make_row(explanation.record, explanation)
    return {**row, **stated, "text": f"{row['text']} [{said}]{waits}"}


def _explain_vllm(root: str) -> Iterator[dict[str, Any]]:
    """Each of vLLM's keys, compared with the nearest earlier one."""
    found = explanations.find_factors(root)
    for number, after in enumerate(found, 1):
        before = explanations.find_nearest_factors(after, found[number:])
        if before is not None:
            differences = explanations.compare_factors(before, after)
            yield {
                "directory": after.directory,
                "against": before.directory,
                "differences": [difference._asdict() for difference in differences],
                "text": "; ".join(map(str, differences)) or "all factors are the same",
            }
