"""``safecache adopt``, ``sign`` and ``verify``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from safecache.cli.arguments import DIRECTORY_HELP, add_json
from safecache.errors import EntryRefusedError, printable
from safecache.places import layout
from safecache.places.layout import CodeFile, Location
from safecache.ports import Published, observe
from safecache.settings import config
from safecache.tiers import levels
from safecache.upkeep import limits
from safecache.upkeep.audit import Resealing, adopt, audit, countersign

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    command = parser.get_default("command")
    if command == "adopt":
        parser.add_argument(
            "directory",
            metavar="DIR",
            help="the cache directory, such as $TORCHINDUCTOR_CACHE_DIR, or a package (.pt2)",
        )
    elif command == "sign":
        parser.add_argument("paths", nargs="+", metavar="FILE", help="a cache directory, or an entry in one")
    else:
        parser.add_argument("paths", nargs="*", metavar="FILE", help=f"an entry, or {DIRECTORY_HELP}")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands and return its exit code. Raises SafecacheError or OSError."""
    observe(Published, limits.keep)
    if arguments.command == "adopt":
        return _show_sealing(adopt(arguments.directory), as_json=arguments.json)
    # All paths are checked before the first change, so that a mistyped one does not leave half of the work done.
    paths = arguments.paths or levels.existing_caches(config.child_environment())
    locations = [location for path in paths for location in _locate(path)]
    code = [file for path in paths if os.path.isdir(path) for file in layout.code(os.path.abspath(path))]
    if arguments.command == "sign":
        return _show_sealing(countersign(locations, code), as_json=arguments.json)
    return _verify(locations, code, as_json=arguments.json)


def _locate(path: str) -> Iterator[Location]:
    """The entries below ``path``, or the one there. Raises OSError, and EntryRefusedError for a file in no cache."""
    if os.path.isdir(path):
        os.scandir(path).close()
        yield from layout.walk(path)
        return
    os.lstat(path)
    location = layout.locate(path)
    if location is None:
        raise EntryRefusedError(f"{path} lies in no cache directory, so that its kind and cache key are not known")
    yield location


def _show_sealing(result: Resealing, *, as_json: bool) -> int:
    """Print what was sealed; 1 if an entry was skipped."""
    if as_json:
        print(json.dumps(result._asdict()))
    else:
        print(f"{result.sealed} files sealed, {result.already_sealed} were sealed already.")
        for path, reason in result.skipped:
            print(printable(f"skipped {path}: {reason}"))
    return int(bool(result.skipped))


@contextmanager
def _progress(files: int) -> Iterator[Callable[[], None]]:
    """Context of a function to call after each file; it advances a progress bar on a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=files)
        yield lambda: progress.advance(task)


def _verify(locations: list[Location], code: list[CodeFile], *, as_json: bool) -> int:
    with _progress(len(locations) + len(code)) as tell:
        outcomes, refused = audit(locations, code, tell)
    if as_json:
        report = {
            "entries": len(locations),
            "code": len(code),
            "outcomes": outcomes,
            "refused": [each._asdict() for each in refused],
        }
        print(json.dumps(report))
    else:
        counts = "".join(f", {count} {outcome}" for outcome, count in sorted(outcomes.items()))
        print(f"{len(locations)} entries, {len(code)} files of code{counts}")
        for path, reason, evidence in refused:
            print(printable(f"refused {path}: {evidence} [{reason}]"))
    return int(bool(refused))
