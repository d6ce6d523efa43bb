"""``safecache adopt``, ``sign`` and ``verify``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from safecache.cli import view
from safecache.cli.arguments import DIRECTORY_HELP, add_json
from safecache.cli.view import View
from safecache.errors import EntryRefusedError
from safecache.places import layout
from safecache.places.layout import Location
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


def run(arguments: argparse.Namespace) -> View:
    """Run one of these commands. Raises SafecacheError or OSError."""
    observe(Published, limits.keep)
    if arguments.command == "adopt":
        return _view_sealing(adopt(arguments.directory))
    # All paths are checked before the first change, so that a mistyped one does not leave half of the work done.
    paths = arguments.paths or levels.existing_caches(config.child_environment())
    locations = [location for path in paths for location in _locate(path)]
    code = [file for path in paths if os.path.isdir(path) for file in layout.code(os.path.abspath(path))]
    if arguments.command == "sign":
        return _view_sealing(countersign(locations, code))
    with view.progress(total=len(locations) + len(code), described="verifying") as (bar, task):
        outcomes, refused = audit(locations, code, lambda: bar.advance(task))
    counts = "".join(f", {count} {outcome}" for outcome, count in sorted(outcomes.items()))
    lines = [f"{len(locations)} entries, {len(code)} files of code{counts}"]
    lines += [f"refused {path}: {evidence} [{reason}]" for path, reason, evidence in refused]
    data = {"entries": len(locations), "code": len(code), "outcomes": outcomes}
    return View({**data, "refused": [each._asdict() for each in refused]}, lines, int(bool(refused)))


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


def _view_sealing(result: Resealing) -> View:
    """What was sealed; 1 if an entry was skipped."""
    lines = [f"{result.sealed} files sealed, {result.already_sealed} were sealed already."]
    lines += [f"skipped {path}: {reason}" for path, reason in result.skipped]
    return View(result._asdict(), lines, int(bool(result.skipped)))
