"""``safecache audit --recompile -- CMD``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from safecache.cli import EXIT_FINDINGS, EXIT_USAGE
from safecache.cli.arguments import DIRECTORY_HELP, add_json
from safecache.cli.run import environment_for_children
from safecache.errors import printable
from safecache.places import layout
from safecache.recompile_check import audits
from safecache.recompile_check.audits import Recompiled
from safecache.settings import config
from safecache.tiers import levels

__all__ = ["add", "run"]

# What would have the program find what it is to compile, or compare it itself.
_WITHOUT = (
    *(
        "SAFECACHE_RECOMPILE_SAMPLE",
        "SAFECACHE_VERIFY",
        "SAFECACHE_MUST_HIT",
        "SAFECACHE_LOWER",
        "SAFECACHE_LOCAL",
        "SAFECACHE_REMOTE",
    ),
    *("TRITON_CACHE_DIR", "_SAFECACHE_REDIRECTED"),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "--recompile", action="store_true", required=True, help="compile all again by running CMD with an empty cache"
    )
    parser.add_argument("--in", dest="directory", metavar="DIR", help=DIRECTORY_HELP)
    add_json(parser)
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...", help="the program, with its arguments")


def run(arguments: argparse.Namespace) -> int:
    """1 if an entry differs, or CMD fails. Raises OSError."""
    command = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    root = arguments.directory or next(iter(levels.existing_caches(config.child_environment())), "")
    if not command or not root:
        print("safecache audit: no command given: safecache audit --recompile -- CMD..." if root else _NO_CACHE)
        return EXIT_USAGE
    environment = {name: text for name, text in environment_for_children().items() if name not in _WITHOUT}
    with _progress(len(list(layout.walk(root)))) as tell:
        found = audits.recompile(os.path.abspath(root), command, environment, tell)
    _show(found, as_json=arguments.json)
    return EXIT_FINDINGS if found.differing or found.status else 0


_NO_CACHE = "safecache audit: there is no cache: name one with --in DIR"


@contextmanager
def _progress(entries: int) -> Iterator[Callable[[int], None]]:
    """Context of a function that takes how many entries there are by now; it moves a bar on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("compiling again", total=entries)
        yield lambda number: progress.update(task, completed=min(number, entries))


def _show(found: Recompiled, *, as_json: bool) -> None:
    if as_json:
        differing = [each._asdict() | {"differences": dict(each.differences)} for each in found.differing]
        print(json.dumps(found._asdict() | {"differing": differing}))
        return
    counts = f"{found.alike} entries are compiled alike, {len(found.differing)} otherwise"
    print(f"{counts}; {len(found.uncompared)} were not compared.")
    for path, differences, kept in found.differing:
        print(printable(f"differs {path}" + (f", both are in {kept}" if kept else "")))
        for part, diff in differences:
            print(printable(f"  {part}:"))
            for line in diff.splitlines():
                print(printable(f"    {line}"))
    for what, why in found.uncompared:
        print(printable(f"not compared {what}: {why}"))
    if found.status:
        print(f"The program ended with status {found.status}: what it would have compiled after that is missing.")
