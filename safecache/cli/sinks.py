"""``safecache status --sinks``: every place in torch and Triton that runs bytes, and what verifies them."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Column, Table

import safecache
from safecache.cli import status
from safecache.patching import sinks, targets
from safecache.patching.sinks import Sink
from safecache.settings import config
from safecache.signing import provenance

__all__ = ["show"]

_GOOD = ("active", "in the source")


def show(*, as_json: bool, importing: bool) -> int:
    """Print the sinks; 1 if the table is not that of the installed release, or one is open or not verified."""
    if config.current().enabled:
        safecache.activate()
    failed = status.import_targets() if importing else {}
    report = _report(_states(failed))
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)
    states = {sink["state"] for sink in report["sinks"]} - ({"not yet imported"} if not importing else set())
    return 0 if states <= {"verified", "needs none"} and not report["vanished"] else 1


def _states(failed: dict[str, str]) -> dict[str, str]:
    """What to say of each hook that is not on, by its name in the table of targets."""
    said: dict[str, str] = {}
    for target, hook in zip(targets.TARGETS, safecache.status(), strict=True):
        if hook.state not in (*_GOOD, "not for this torch"):
            said[target.hook] = hook.reason or failed.get(hook.name, "") or hook.state
    return said


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
    waits = all(off[hook] == "not yet imported" for hook in verdict.hooks if hook in off)
    return {**row, "state": "not yet imported" if waits else "not verified", "reason": "; ".join(problems)}


def _name(sink: Sink) -> str:
    times = f" *{sink.times}" if sink.times > 1 else ""
    return f"{sink.module}: {sink.function}: {sink.what}{times}"


def _print(report: dict[str, Any]) -> None:
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
