"""``safecache status`` and ``doctor``: the hooks, and what prevents caches from working on this machine."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import safecache
from safecache.cli import EXIT_FINDINGS, view
from safecache.cli.view import Heading, Table, View, add_json, require_zstandard
from safecache.doctor import compare, examine_machine, load_check
from safecache.doctor.comparison import Baseline
from safecache.doctor.finding import SEVERITIES, find_worst
from safecache.patching import activation, sinks
from safecache.patching.hook import HookState, HookStatus
from safecache.patching.sinks import Sink
from safecache.settings import config
from safecache.settings.settings import VALUES, is_pack
from safecache.signing import keyring, provenance
from safecache.upkeep import warming

__all__ = ["add_doctor", "add_status", "import_targets", "run_doctor", "run_status"]


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--load", metavar="FILE", help="explain why a shared object does not load, without running it")
    what.add_argument("--no-import", action="store_true", help="do not import torch; skip the hooks")
    text = "check whether packs or cache directories that were filled elsewhere can be used here"
    what.add_argument("--for", dest="sources", nargs="*", metavar="PACK|DIR", help=text)
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    add_json(parser)


def run_doctor(arguments: argparse.Namespace) -> View:
    """Examine this machine, a file or a cache from elsewhere."""
    if arguments.sources is not None:
        return _compare_sources(arguments.sources)
    if arguments.load:
        findings = load_check.check(arguments.load)
    else:
        with view.show_progress(described="looking around"):
            findings = examine_machine(import_torch=not arguments.no_import)
    data = {"file": arguments.load} if arguments.load else {"worst": find_worst(findings)}
    lines = [f"{each.severity}: {each.text}" for each in findings]
    if not arguments.load:
        counts = Counter(finding.severity for finding in findings)
        lines.append(
            ", ".join(f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity])
        )
    least = SEVERITIES.index("warning" if arguments.strict else "error")
    code = EXIT_FINDINGS if SEVERITIES.index(find_worst(findings)) >= least else 0
    rows = [each._asdict() | {"evidence": each.evidence, "text": each.text} for each in findings]
    return View({**data, "findings": rows}, lines, code)


def _compare_sources(sources: list[str]) -> View:
    """Tell how caches from elsewhere differ; 1 if anything misses by that, or nothing lies there."""
    packs = [source for source in sources if is_pack(source)]
    directories = [source for source in sources if source not in packs]
    if packs:
        require_zstandard()
    baselines = [Baseline.read_pack(pack) for pack in packs]
    if directories or not packs:
        baselines.append(Baseline.collect_directories(directories or warming.list_caches()))
    groups = sum(baseline.groups for baseline in baselines)
    found = [each for baseline in baselines for each in compare(baseline)]
    lines = [f"{'misses' if each.misses else 'may miss'}: {each.text}" for each in found]
    if not groups:
        lines.append("it has no compiled files")
    elif find_worst(found) != "error":
        lines.append("every entry can hit here as far as can be told without compiling")
    misses = not groups or find_worst(found) == "error"
    differences = [each._asdict() | {"reason": each.reason.value, "text": each.text} for each in found]
    data = {"groups": groups, "misses": misses, "differences": differences}
    return View(data, lines, EXIT_FINDINGS if misses else 0)


def add_status(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_json(parser)
    parser.add_argument("--all", action="store_true", help="list every hook, not only inactive ones")
    text = "list every place in torch and Triton that runs bytes, and its verifier"
    parser.add_argument("--sinks", action="store_true", help=text)
    text = "list every hook, its upstream function and the defect it answers"
    parser.add_argument("--table", action="store_true", help=text)
    parser.add_argument("--no-import", action="store_true", help="do not import torch; only list the hooks")


def run_status(arguments: argparse.Namespace) -> View:
    """Tell what was asked for; 1 if something that should be on, or verified, is not."""
    if arguments.table:
        return _view_table()
    if config.current().enabled:
        safecache.activate()
    importing = not arguments.no_import
    failed = import_targets() if importing else {}
    if arguments.sinks:
        return _view_sinks(failed, importing=importing)
    return _view_hooks(failed, importing=importing, everything=arguments.all)


def _view_table() -> View:
    """The hooks as their decorators describe them."""
    lines = []
    for unit, hook in activation.list_hooks():
        what = "verifies" if hook.verifies else "helps"
        lines.append(f"{unit} {what} {hook.module}:{hook.attribute} by {hook.label}")
        lines += [f"    ({signature})" for signature in hook.signatures]
        lines.append(f"    {hook.why} {hook.issue}")
        lines += [f"    Not through {hook.instead}."] if hook.instead else []
    rows = [{**hook._asdict(), "unit": unit, "function": hook.label} for unit, hook in activation.list_hooks()]
    return View(rows, lines)


def _view_sinks(failed: dict[str, str], *, importing: bool) -> View:
    """The sinks; 1 if they differ from the release's table, or one is open or not verified."""
    # Why each hook that is not on is off, by its name.
    said = {
        hook.name: hook.reason or failed.get(hook.name, "") or hook.state
        for hook in safecache.status()
        if not hook.state.is_healthy or hook.state is HookState.SWITCHED_OFF
    }
    off = {hook.label: said[hook.name] for _, hook in activation.list_hooks() if hook.name in said}
    described = {"torch": provenance.torch_version(), "triton": provenance.describe()["triton"]}
    rows, vanished = list[dict[str, str]](), list[str]()
    for distribution in sinks.DISTRIBUTIONS:
        found = sinks.scan_installed(distribution)
        if found is not None:
            known = sinks.list_sinks(distribution, sinks.parse_release(described[distribution]))
            rows += [_make_row(sink, known.get(sink), off) for sink in found]
            vanished += [_name_sink(sink) for sink in sinks.find_differences(found, known)[1]]
    states = {row["state"] for row in rows} - ({"not yet imported"} if not importing else set())
    is_fine = states <= {"verified", "needs none"} and not vanished
    text: list[str | Table] = [
        f"torch {described['torch'] or 'not installed'}, triton {described['triton'] or 'not installed'}",
        Table(
            [Heading("sink", folds=True), Heading("hook", folds=True), Heading("state"), Heading("reason", folds=True)],
            [tuple(row.values()) for row in rows],
            dict.fromkeys(("unknown", "open", "not verified"), "red"),
        ),
        *(f"in the table, and not in this release: {sink}" for sink in vanished),
    ]
    return View({**described, "sinks": rows, "vanished": vanished}, text, 0 if is_fine else 1)


def _make_row(sink: Sink, verdict: sinks.Verdict | None, off: dict[str, str]) -> dict[str, str]:
    row = {
        "sink": _name_sink(sink),
        "hook": "",
        "state": "unknown",
        "reason": "It is not in the table of this release.",
    }
    if verdict is None:
        return row
    row["hook"] = " ".join(verdict.hooks)
    problems = [f"{hook}: {off[hook]}" for hook in verdict.hooks if hook in off]
    if verdict.open:
        return {**row, "state": "open", "reason": verdict.reason}
    if not verdict.hooks:
        return {**row, "state": "needs none", "reason": verdict.reason}
    if not problems:
        return {**row, "state": "verified", "reason": ""}
    waits = all(off[hook] is HookState.NOT_IMPORTED for hook in verdict.hooks if hook in off)
    return {**row, "state": "not yet imported" if waits else "not verified", "reason": "; ".join(problems)}


def _name_sink(sink: Sink) -> str:
    times = f" *{sink.times}" if sink.times > 1 else ""
    return f"{sink.module}: {sink.function}: {sink.what}{times}"


def _view_hooks(failed: dict[str, str], *, importing: bool, everything: bool) -> View:
    """The status; 1 if a hook that could be active is not."""
    settings, keys = config.current(), keyring.current(tell=False)
    hooks = [hook._replace(reason=hook.reason or failed.get(hook.name, "")) for hook in safecache.status()]
    data = {
        "version": safecache.__version__,
        "enabled": bool(settings.enabled),
        "observes": settings.is_observing,
        "torch": provenance.torch_version(),
        "settings": {name: getattr(settings, name) for name in VALUES},
        "key": keys.signing.id.hex() if keys.signing else None,
        "key_problem": keys.problem,
        "only_verifies": keys.is_verifier and not keys.find_objection(),
        "trusted_keys": sorted(key_id.hex() for key_id in keys.trusted),
        "refused_keys": list(keys.problems),
        "hooks": [hook._asdict() for hook in hooks],
    }
    is_healthy = not importing or all(hook.state.is_healthy for hook in hooks)
    code = 0 if is_healthy and (keys.signing or data["only_verifies"]) and settings.enabled else 1
    return View(data, _format_status(data, hooks, everything=everything), code)


def import_targets() -> dict[str, str]:
    """Import every target module; returns the reason, by hook name, for each that cannot be imported."""
    failed = {}
    with view.show_progress(described="importing torch") as (bar, task):
        for _, hook in activation.list_hooks():
            if "torch" in sys.modules and hook.is_not_for(provenance.torch_release()):
                continue  # such a torch may not have the module either
            bar.update(task, description=f"importing {hook.module}")
            try:
                importlib.import_module(hook.module)
            except Exception as error:
                failed[hook.name] = f"{type(error).__name__}: {error}"
    return failed


def _format_status(data: dict[str, Any], hooks: list[HookStatus], *, everything: bool) -> Iterator[str | Table]:
    yield f"safecache {data['version']}, torch {data['torch'] or 'not installed'}"
    if data["observes"]:
        yield "SAFECACHE=observe: files that do not verify are reported and used, as in stock torch"
    state = "verifies only" if data["only_verifies"] else "no key"
    yield f"key {data['key']}" if data["key"] else f"{state}: {data['key_problem']}"
    yield from (f"key refused: {problem}" for problem in data["refused_keys"])
    absent = {hook.reason for hook in hooks if hook.state is HookState.NOT_FOR_TORCH and hook.reason}
    units: dict[str, Counter[str]] = {}
    for hook in hooks:
        if hook.reason not in absent:
            units.setdefault(hook.unit, Counter())[hook.state] += 1
    for unit, states in units.items():
        yield f"{unit:<20} {', '.join(f'{count} {state}' for state, count in states.items())}"
    if absent:
        yield ", ".join(sorted(absent))
    instead = {hook.name: f"not through {hook.instead}" for _, hook in activation.list_hooks() if hook.instead}
    rows = [
        (hook.name, hook.state, hook.reason or instead.get(hook.name, ""))
        for hook in hooks
        if everything or not hook.state.is_healthy
    ]
    if rows:
        headings = (Heading("hook", folds=True), Heading("state"), Heading("reason", folds=True))
        yield Table(headings, rows, {state: "red" for state in HookState if not state.is_healthy})
