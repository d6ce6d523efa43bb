"""``safecache ls --sum``: what caches hold, by kind, and when it was last used; or what the remote cache holds."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from safecache.cli.arguments import remote_of
from safecache.errors import SafecacheError, printable
from safecache.remote.client import Unavailable
from safecache.reporting.kinds import Kind
from safecache.settings import config, timestamps
from safecache.settings.units import write_age, write_size
from safecache.store.groups import KINDS
from safecache.tiers import levels
from safecache.upkeep import inventory, remote_contents
from safecache.upkeep.remote_contents import Held

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Print the table of each directory, or of the remote. Raises OSError for one that cannot be read."""
    if arguments.remote is not None:
        return _run_remote(arguments)
    directories = arguments.directories or levels.existing_caches(config.child_environment())
    reports = [_report(directory) for directory in directories]
    if arguments.json:
        print(json.dumps({"directories": reports}))
    else:
        for report in reports:
            _print(report)
    return 0


def _report(directory: str) -> dict[str, Any]:
    found = inventory.take(directory)
    kinds: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        groups = [group for group in found.groups if group.kind is kind]
        if groups:
            used = [max(group.stamps) for group in groups]
            kinds[kind.plural] = {
                "groups": len(groups),
                "files": sum(len(group.all_files) for group in groups),
                "bytes": sum(group.size for group in groups),
                "oldest_use": timestamps.write_stamp(min(used)),
                "newest_use": timestamps.write_stamp(max(used)),
            }
    other = {"files": len(found.other), "bytes": sum(file.size for file in found.other)}
    total = {what: sum(row[what] for row in [*kinds.values(), other]) for what in ("files", "bytes")}
    return {"directory": directory, "kinds": kinds, "other": other, "total": total}


def _print(report: dict[str, Any]) -> None:
    columns = [Column("kind"), *(Column(name, justify="right") for name in _COLUMNS)]
    table = Table(*columns, title=printable(report["directory"]), title_justify="left")
    for kind, row in report["kinds"].items():
        ages = [_since(row[f"{which}_use"]) for which in ("oldest", "newest")]
        table.add_row(kind, str(row["groups"]), str(row["files"]), write_size(row["bytes"]), *ages)
    for name in ("other", "total"):
        table.add_row(name, "", str(report[name]["files"]), write_size(report[name]["bytes"]), "", "")
    Console().print(table)


_COLUMNS = ("groups", "files", "size", "oldest use", "newest use")


def _since(moment: str) -> str:
    return f"{write_age(max(0.0, time.time() - timestamps.parse(moment)))} ago"


def _run_remote(arguments: argparse.Namespace) -> int:
    remote = remote_of(arguments)
    try:
        report = _remote_report(remote.shown, remote_contents.listed(remote))
    except Unavailable:
        raise SafecacheError(f"{remote.shown} cannot be listed") from None
    if arguments.json:
        print(json.dumps(report))
    else:
        _print_remote(report)
    return 0


def _remote_report(shown: str, held: list[Held]) -> dict[str, Any]:
    kinds = {kind.plural or kind.noun: [each for each in held if each.kind is kind] for kind in Kind}
    other = [each for each in held if each.kind is None]
    rows = {name: _row(found) for name, found in (*kinds.items(), ("other", other)) if found}
    return {"remote": shown, "namespace": config.current().namespace, "kinds": rows, "total": _row(held)}


def _row(held: list[Held]) -> dict[str, Any]:
    written = [each.stored.modified for each in held if each.stored.modified is not None]
    return {
        "groups": len(held),
        "of_this_build": sum(each.is_of_this_build for each in held),
        "bytes": remote_contents.sizes(held),
        "oldest": timestamps.write_stamp(min(written)) if written else None,
        "newest": timestamps.write_stamp(max(written)) if written else None,
    }


def _print_remote(report: dict[str, Any]) -> None:
    names = ("groups", "of this build", "size", "oldest", "newest")
    print(printable(f"{report['remote']}, namespace {report['namespace']}"))  # a title would be folded
    table = Table("kind", *(Column(name, justify="right") for name in names))
    for kind, row in (*report["kinds"].items(), ("total", report["total"])):
        # Redis does not tell when something was written.
        ages = [_since(row[which]) if row[which] else "" for which in ("oldest", "newest")]
        table.add_row(kind, str(row["groups"]), str(row["of_this_build"]), write_size(row["bytes"]), *ages)
    Console().print(table)
