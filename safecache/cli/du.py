"""``safecache du``: what caches hold, by kind, and when it was last used."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from safecache.cli.arguments import add_directories, add_json
from safecache.errors import printable
from safecache.settings import config, timestamps
from safecache.settings.units import write_age, write_size
from safecache.store.groups import KINDS
from safecache.tiers import levels
from safecache.upkeep import inventory

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_directories(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the table of each directory. Raises OSError for one that cannot be read."""
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
