"""``safecache gc`` brings caches within their limits, as publishing does automatically; ``--all`` empties them.

A remote cache is brought within those alone that are given here: what others keep there is not this host's to choose.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from safecache.cli import EXIT_USAGE
from safecache.cli.arguments import add_directories, add_json, add_remote, number, of, remote_of
from safecache.errors import SafecacheError, printable
from safecache.remote.client import Client, Unavailable
from safecache.settings import config, units
from safecache.settings.units import write_size
from safecache.store.groups import Group
from safecache.tiers import levels
from safecache.upkeep import eviction, remote_contents
from safecache.upkeep.eviction import Limits, Sweep
from safecache.upkeep.remote_contents import Held, Removal

__all__ = ["add", "run"]

_NOTHING = Limits(size=-1)


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    of_size, of_age = of(units.parse_size, units.SIZES), of(units.parse_age, units.AGES)
    parser.add_argument("--max-bytes", type=of_size, metavar="10G", help="in place of SAFECACHE_LIMITS=bytes=…")
    parser.add_argument("--max-files", type=number, metavar="N", help="likewise, files=…")
    parser.add_argument("--max-age", type=of_age, metavar="30d", help="likewise, age=…")
    add_remote(parser, instead="instead of a directory, what was written there longest ago")
    parser.add_argument("--quiet", action="store_true", help="print nothing, and let others run first")
    parser.add_argument("--all", action="store_true", help="all of a cache that no running job uses")
    parser.add_argument("--force", action="store_true", help="with --all, also what running jobs use, or have just now")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    add_directories(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Sweep each directory; 1 if one still exceeds a limit, or is not clean. Raises SafecacheError or OSError."""
    return _clean(arguments) if arguments.all else _gc(arguments)


def _gc(arguments: argparse.Namespace) -> int:
    if arguments.quiet:
        os.nice(19)
    if arguments.remote is not None:
        return _gc_remote(arguments)
    settings = config.current()
    limits = Limits(
        arguments.max_bytes or settings.max_bytes,
        arguments.max_files or settings.max_files,
        arguments.max_age or settings.max_age,
    )
    if limits == Limits():
        print("safecache gc: no limit is set, by an option or SAFECACHE_LIMITS", file=sys.stderr)
    sweeps = _sweep_each(arguments, lambda path: eviction.sweep(path, limits, dry_run=arguments.dry_run))
    if not arguments.quiet:
        _show(sweeps, as_json=arguments.json)
    return int(any(sweep is not None and sweep.kept for sweep in sweeps.values()))


def _gc_remote(arguments: argparse.Namespace) -> int:
    """1 if something could not be removed."""
    if arguments.max_files or not (arguments.max_bytes or arguments.max_age):
        print("safecache gc: --remote takes --max-bytes, --max-age or both, and nothing else", file=sys.stderr)
        return EXIT_USAGE
    remote = remote_of(arguments)
    try:
        held = remote_contents.listed(remote)
    except Unavailable:
        raise SafecacheError(f"{remote.shown} cannot be listed") from None
    if any(each.stored.modified is None for each in held):
        text = (
            "does not tell when something was written, and expires by itself: ttl in SAFECACHE_TIERS, maxmemory-policy"
        )
        raise SafecacheError(f"{remote.shown} {text}")
    going = remote_contents.chosen(held, time.time(), arguments.max_bytes, arguments.max_age)
    done = Removal(going, []) if arguments.dry_run else remote_contents.remove(remote, going)
    if not arguments.quiet:
        _show_remote(remote, held, done, as_json=arguments.json)
    return int(bool(done.failed))


def _show_remote(remote: Client, held: list[Held], done: Removal, *, as_json: bool) -> None:
    gone, failed = _held_sums(done.removed), _held_sums(done.failed)
    left = {what: number - gone[what] for what, number in _held_sums(held).items()}
    if as_json:
        print(json.dumps({"remote": remote.shown, "removed": gone, "failed": failed, "left": left}))
        return
    parts = [f"{each['groups']} groups, {write_size(each['bytes'])}" for each in (gone, failed, left)]
    print(printable(f"{remote.shown}: {parts[0]} removed; {parts[2]} are there now"))
    if done.failed:
        print(f"  {parts[1]} could not be removed")


def _held_sums(held: list[Held]) -> dict[str, int]:
    return {"groups": len(held), "bytes": remote_contents.sizes(held)}


def _clean(arguments: argparse.Namespace) -> int:
    sweeps = _sweep_each(
        arguments,
        lambda path: eviction.sweep(path, _NOTHING, heed_jobs=not arguments.force, dry_run=arguments.dry_run),
    )
    _show(sweeps, as_json=arguments.json)
    return int(any(sweep is None or sweep.kept for sweep in sweeps.values()))


def _sweep_each(arguments: argparse.Namespace, sweep: Callable[[str], Sweep | None]) -> dict[str, Sweep | None]:
    """The result of ``sweep`` for each directory that was named, or else that torch and Triton use."""
    directories = arguments.directories or levels.existing_caches(config.child_environment())
    return {directory: sweep(directory) for directory in directories}


def _show(sweeps: dict[str, Sweep | None], *, as_json: bool) -> None:
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
        "removed": _sums(sweep.removed) | {"kinds": dict(Counter(group.kind.plural for group in sweep.removed))},
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
