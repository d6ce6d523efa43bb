"""``safecache ls --crashed`` and ``forget``: what crashes Triton's compiler, and what crashes when it is run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from safecache.cli.arguments import DIRECTORY_HELP
from safecache.errors import printable
from safecache.isolation import crashes, reports
from safecache.places import layout
from safecache.settings import config, timestamps
from safecache.tiers import levels
from safecache.trials import strikes
from safecache.upkeep import quarantined

__all__ = ["add", "run"]

_SHOWN = 16


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("hash", nargs="?", metavar="HASH", help="as `safecache ls --crashed` shows it, or more of it")
    which.add_argument("--all", action="store_true", help="all, and what crashed in its first run")
    parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands and return its exit code. Raises SafecacheError or OSError."""
    caches = arguments.directories or levels.existing_caches(config.child_environment())
    roots = list(_roots(caches))
    if arguments.command == "ls":
        return _list(roots, as_json=arguments.json)
    return _forget(roots, arguments.hash)


def _roots(caches: list[str]) -> Iterator[str]:
    for directory in caches:
        os.scandir(directory).close()
        yield from layout.triton_caches(directory)


def _list(roots: list[str], *, as_json: bool) -> int:
    found = [row for root in roots for row in _rows(root)]
    first_runs = list(quarantined.list_struck(roots))
    if as_json:
        rows = [each._asdict() | {"moment": timestamps.write(each.moment), "state": each.state} for each in first_runs]
        print(json.dumps({"crashed": found, "first_runs": rows}))
        return 0
    for row in found:
        state = "skipped" if row["skipped"] else "compiled again"
        crash = f"{row['kernel']} {row['stage']}: {row['ended']}"
        print(printable(f"{row['hash'][:_SHOWN]} {row['time']} {crash} ({state})"))
        if row["report"]:
            print(printable(f"  {row['report']}"))
    for each in first_runs:
        print(
            printable(f"{each.hash[:_SHOWN]} {timestamps.write(each.moment)} first run of {each.what} ({each.state})")
        )
    return 0


def _rows(root: str) -> Iterator[dict[str, Any]]:
    notes = dict(crashes.listed(root))
    for path, summary in reports.listed(root).items():
        note = notes.pop(str(summary.get("hash")), None)
        ended = summary.get("ended")
        yield {
            "hash": str(summary.get("hash")),
            "time": str(summary.get("time")),
            "kernel": str(summary.get("kernel")),
            "stage": str(summary.get("stage")),
            "ended": str(ended.get("words")) if isinstance(ended, dict) else "",
            "skipped": note is not None,
            "report": path,
        }
    for hash, note in notes.items():
        yield {
            "hash": hash,
            "time": timestamps.write(note.moment),
            "kernel": note.kernel,
            "stage": note.crash.stage,
            "ended": note.crash.words,
            "skipped": True,
            "report": None,
        }


def _forget(roots: list[str], beginning: str | None) -> int:
    """Forget the crashes whose hash has this beginning, or all, and first runs; 1 for none with it."""
    found = [(root, hash) for root in roots for hash in crashes.hashes(root) if hash.startswith(beginning or "")]
    forgotten = sum(crashes.forget(root, hash) for root, hash in found)
    if beginning is None:
        forgotten += sum(strikes.forget(root) for root in roots)
    if beginning is not None and not forgotten:
        print(f"safecache forget: no kernel of the hash {printable(beginning)} is skipped", file=sys.stderr)
        return 1
    print(f"{forgotten} forgotten")
    return 0
