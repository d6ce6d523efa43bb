"""``safecache status``: the state of every hook on the installed torch, what it is for, and of all that runs bytes."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table

import safecache
from safecache.cli.arguments import add_json
from safecache.errors import printable
from safecache.patching import activation, sinks
from safecache.patching.hook import HookState, HookStatus
from safecache.patching.sinks import Sink
from safecache.settings import config, settings
from safecache.signing import keyring, provenance

__all__ = ["add", "import_targets", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_json(parser)
    parser.add_argument("--all", action="store_true", help="a line for every hook, and not only for those that are off")
    parser.add_argument(
        "--sinks", action="store_true", help="every place in torch and Triton that runs bytes, and what verifies them"
    )
    parser.add_argument(
        "--table", action="store_true", help="every hook: what it is on, and the defect that it answers"
    )
    parser.add_argument("--no-import", action="store_true", help="do not import torch: only show the table")


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for; 1 if something that should be on, or verified, is not."""
    importing = not arguments.no_import
    if arguments.table:
        return _show_table(as_json=arguments.json)
    if arguments.sinks:
        return _show_sinks(as_json=arguments.json, importing=importing)
    return _show(as_json=arguments.json, importing=importing, everything=arguments.all)


def _show_table(*, as_json: bool) -> int:
    """Print the hooks as their decorators describe them."""
    rows = activation.list_hooks()
    if as_json:
        print(json.dumps([{**hook._asdict(), "unit": unit, "function": hook.label} for unit, hook in rows]))
        return 0
    for unit, hook in rows:
        what = "verifies" if hook.verifies else "helps"
        print(f"{unit} {what} {hook.module}:{hook.attribute} by {hook.label}")
        for signature in hook.signatures:
            print(f"    ({signature})")
        print(f"    {hook.why} {hook.issue}")
        if hook.instead:
            print(f"    Not through {hook.instead}.")
    return 0


def _show_sinks(*, as_json: bool, importing: bool) -> int:
    """Print the sinks; 1 if they differ from the release's table, or one is open or not verified."""
    if config.current().enabled:
        safecache.activate()
    failed = import_targets() if importing else {}
    report = _report(_states(failed))
    if as_json:
        print(json.dumps(report))
    else:
        _print_sinks(report)
    states = {sink["state"] for sink in report["sinks"]} - ({"not yet imported"} if not importing else set())
    return 0 if states <= {"verified", "needs none"} and not report["vanished"] else 1


def _states(failed: dict[str, str]) -> dict[str, str]:
    """Why each hook that is not on is off, by its label."""
    said = {
        hook.name: hook.reason or failed.get(hook.name, "") or hook.state
        for hook in safecache.status()
        if not hook.state.is_healthy or hook.state is HookState.SWITCHED_OFF
    }
    return {hook.label: said[hook.name] for _, hook in activation.list_hooks() if hook.name in said}


def _report(off: dict[str, str]) -> dict[str, Any]:
    described = {"torch": provenance.torch_version(), "triton": provenance.describe()["triton"]}
    rows: list[dict[str, str]] = []
    vanished: list[str] = []
    for distribution in sinks.DISTRIBUTIONS:
        found = sinks.installed(distribution)
        if found is None:
            continue
        known = sinks.listed(distribution, sinks.release_of(described[distribution]))
        rows += [_row(sink, known.get(sink), off) for sink in found]
        vanished += [_name(sink) for sink in sinks.differences(found, known)[1]]
    return {**described, "sinks": rows, "vanished": vanished}


def _row(sink: Sink, verdict: sinks.Verdict | None, off: dict[str, str]) -> dict[str, str]:
    row = {"sink": _name(sink), "hook": "", "state": "unknown", "reason": "It is not in the table of this release."}
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


def _name(sink: Sink) -> str:
    times = f" *{sink.times}" if sink.times > 1 else ""
    return f"{sink.module}: {sink.function}: {sink.what}{times}"


def _print_sinks(report: dict[str, Any]) -> None:
    console = Console()
    console.print(f"torch {report['torch'] or 'not installed'}, triton {report['triton'] or 'not installed'}")
    table = Table(Column("sink", overflow="fold"), Column("hook", overflow="fold"), "state", Column("reason"))
    colours = {"verified": "green", "needs none": "dim", "not yet imported": "dim"}
    for sink in report["sinks"]:
        colour = colours.get(sink["state"], "red")
        table.add_row(sink["sink"], sink["hook"], f"[{colour}]{sink['state']}[/]", sink["reason"])
    console.print(table)
    for sink in report["vanished"]:
        console.print(f"in the table, and not in this release: {sink}", markup=False)


def _show(*, as_json: bool, importing: bool, everything: bool) -> int:
    """Print the status; 1 if a hook that could be active is not."""
    enabled = config.current().enabled
    if enabled:
        safecache.activate()
    failed = import_targets() if importing else {}
    hooks = [hook._replace(reason=hook.reason or failed.get(hook.name, "")) for hook in safecache.status()]
    keys = keyring.current(tell=False)
    report = {
        "version": safecache.__version__,
        "enabled": bool(enabled),
        "observes": config.current().observes,
        "torch": provenance.torch_version(),
        "settings": {name: getattr(config.current(), name) for name in settings.VALUES},
        "key": keys.signing.id.hex() if keys.signing else None,
        "key_problem": keys.problem,
        "trusted_keys": sorted(key_id.hex() for key_id in keys.trusted),
        "refused_keys": list(keys.problems),
        "hooks": [hook._asdict() for hook in hooks],
    }
    if as_json:
        print(json.dumps(report))
    else:
        _print(report, hooks, everything=everything)
    healthy = not importing or all(hook.state.is_healthy for hook in hooks)
    return 0 if healthy and keys.signing and enabled else 1


def import_targets() -> dict[str, str]:
    """Import every target module; returns the reason, by hook name, for each that cannot be imported."""
    failed = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("importing torch")
        for _, hook in activation.list_hooks():
            if "torch" in sys.modules and hook.is_not_for(provenance.torch_release()):
                continue  # such a torch may not have the module either
            progress.update(task, description=f"importing {hook.module}")
            try:
                importlib.import_module(hook.module)
            except Exception as error:
                failed[hook.name] = f"{type(error).__name__}: {error}"
    return failed


def _print(report: dict[str, Any], hooks: list[HookStatus], *, everything: bool) -> None:
    console = Console()
    console.print(f"safecache {report['version']}, torch {report['torch'] or 'not installed'}")
    if report["observes"]:
        console.print("SAFECACHE=observe: what does not verify is reported, and used as in stock torch")
    key = f"key {report['key']}" if report["key"] else f"no key: {report['key_problem']}"
    console.print(printable(key), markup=False)
    for problem in report["refused_keys"]:
        console.print(printable(f"key refused: {problem}"), markup=False)
    absent = {hook.reason for hook in hooks if hook.state is HookState.NOT_FOR_TORCH and hook.reason}
    units: dict[str, Counter[str]] = {}
    for hook in hooks:
        if hook.reason not in absent:
            units.setdefault(hook.unit, Counter())[hook.state] += 1
    for unit, states in units.items():
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        console.print(f"{unit:<20} {counts}", highlight=False)
    if absent:
        console.print(", ".join(sorted(absent)), highlight=False)
    shown = hooks if everything else [hook for hook in hooks if not hook.state.is_healthy]
    if not shown:
        return
    table = Table(Column("hook", overflow="fold"), "state", Column("reason", overflow="fold"))
    instead = {hook.name: hook.instead for _, hook in activation.list_hooks()}
    dim = (HookState.NOT_IMPORTED, HookState.NOT_FOR_TORCH)
    for hook in shown:
        colour = "green" if hook.state.is_on else "dim" if hook.state in dim else "red"
        reason = hook.reason or (instead.get(hook.name) and f"not through {instead[hook.name]}")
        table.add_row(hook.name, f"[{colour}]{hook.state}[/]", printable(reason or ""))
    console.print(table)
