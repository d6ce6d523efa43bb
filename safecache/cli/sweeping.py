"""What ``gc`` and ``clean`` have in common: the directories, and what is printed."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from safecache.errors import printable
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.store.groups import Group
from safecache.tiers import levels
from safecache.upkeep.eviction import Sweep

__all__ = ["show", "sweep_each"]


def sweep_each(arguments: argparse.Namespace, sweep: Callable[[str], Sweep | None]) -> dict[str, Sweep | None]:
    """What ``sweep`` returns for each directory that was named, or that torch and Triton use."""
    directories = arguments.directories or levels.existing_caches(config.child_environment())
    return {directory: sweep(directory) for directory in directories}


def show(sweeps: dict[str, Sweep | None], *, as_json: bool) -> None:
    """Print what was removed from each directory, what stayed and why, and what it holds now."""
    reports = {directory: None if sweep is None else _report(sweep) for directory, sweep in sweeps.items()}
    if as_json:
        print(json.dumps({"directories": reports}))
        return
    for directory, report in reports.items():
        if report is None:
            print(printable(f"{directory}: another process is removing from it"))
        else:
            _print(directory, report)


def _report(sweep: Sweep) -> dict[str, Any]:
    reasons = sorted({why for _, why in sweep.kept})
    return {
        "removed": _sums(sweep.removed) | {"kinds": dict(Counter(group.kind.value for group in sweep.removed))},
        "kept": {why: _sums(group for group, reason in sweep.kept if reason == why) for why in reasons},
        "left": {"files": sweep.files, "bytes": sweep.size},
        "reaped_bytes": sweep.reaped,
    }


def _sums(groups: Iterable[Group]) -> dict[str, Any]:
    found = list(groups)
    sizes = {"files": sum(len(group.all_files) for group in found), "bytes": sum(group.size for group in found)}
    return {"groups": len(found)} | sizes


def _print(directory: str, report: dict[str, Any]) -> None:
    removed, left = report["removed"], report["left"]
    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(removed["kinds"].items()))
    print(printable(f"{directory}: {_words(removed)} removed{f' ({kinds})' if kinds else ''}"))
    if report["reaped_bytes"]:
        print(f"  {write_size(report['reaped_bytes'])} of dead writers removed")
    for why, sums in report["kept"].items():
        print(printable(f"  {_words(sums)} left: {why}"))
    print(f"  {left['files']} files, {write_size(left['bytes'])} are there now")


def _words(sums: dict[str, Any]) -> str:
    return f"{sums['groups']} groups, {sums['files']} files, {write_size(sums['bytes'])}"
