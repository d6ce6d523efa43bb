"""``safecache ls --crashed`` and ``forget``: what crashes Triton's compiler, and what crashes when it is run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import Any

from safecache.cli.arguments import DIRECTORY_HELP, find_caches
from safecache.cli.view import View
from safecache.errors import SafecacheError
from safecache.isolation import crashes, reports
from safecache.places import layout
from safecache.settings import timestamps
from safecache.trials import strikes
from safecache.upkeep import quarantined

__all__ = ["add", "run", "view"]

_SHOWN = 16


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("hash", nargs="?", metavar="HASH", help="as `safecache ls --crashed` shows it, or more of it")
    which.add_argument("--all", action="store_true", help="all, and what crashed in its first run")
    parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)


def _roots(caches: Iterable[str]) -> Iterator[str]:
    for directory in caches:
        os.scandir(directory).close()
        yield from layout.triton_caches(directory)


def run(arguments: argparse.Namespace) -> View:
    """Forget what has crashed. Raises SafecacheError or OSError."""
    roots = list(_roots(find_caches(arguments)))
    found = [(root, hash) for root in roots for hash in crashes.hashes(root) if hash.startswith(arguments.hash or "")]
    forgotten = sum(int(crashes.forget(root, hash)) for root, hash in found)
    if arguments.hash is None:
        forgotten += sum(strikes.forget(root) for root in roots)
    elif not forgotten:
        raise SafecacheError(f"no kernel of the hash {arguments.hash} is skipped")
    return View(None, [f"{forgotten} forgotten"])


def view(caches: Iterable[str]) -> View:
    """What has crashed in these caches. Raises OSError."""
    roots = list(_roots(caches))
    found = [row for root in roots for row in _rows(root)]
    first_runs = list(quarantined.list_struck(roots))
    lines = []
    for row in found:
        state = "skipped" if row["skipped"] else "compiled again"
        lines.append(f"{row['hash'][:_SHOWN]} {row['time']} {row['kernel']} {row['stage']}: {row['ended']} ({state})")
        lines += [f"  {row['report']}"] if row["report"] else []
    for each in first_runs:
        lines.append(f"{each.hash[:_SHOWN]} {timestamps.write(each.moment)} first run of {each.what} ({each.state})")
    rows = [each._asdict() | {"moment": timestamps.write(each.moment), "state": each.state} for each in first_runs]
    return View({"crashed": found, "first_runs": rows}, lines)


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
