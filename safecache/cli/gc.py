"""``safecache gc``, ``quarantine`` and ``forget``: what goes from a cache, or has gone, and what is tried again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from safecache.cli import UsageError
from safecache.cli.view import (
    DIRECTORY_HELP,
    Complaint,
    Heading,
    Table,
    View,
    add_directories,
    add_json,
    add_places,
    add_remote,
    find_caches,
    list_remote,
    make_type,
    number,
)
from safecache.crash_guard import strikes
from safecache.errors import EntryRefusedError, SafecacheError
from safecache.isolation import crashes
from safecache.places import layout
from safecache.settings import config, units
from safecache.settings.units import write_count, write_size
from safecache.store.groups import Group
from safecache.tiers import levels
from safecache.upkeep import audit, copies, eviction
from safecache.upkeep.audit import Quarantined
from safecache.upkeep.eviction import Limits, Sweep

__all__ = [
    "add_forget",
    "add_gc",
    "add_quarantine",
    "list_crashes",
    "run_forget",
    "run_gc",
    "run_quarantine",
    "view_crashes",
]

_NOTHING = Limits(size=-1)
_ITEM_HELP = "item, as printed by `safecache quarantine`, or a unique prefix"
# Letters of a hash.
_SHOWN = 16
_HEADINGS = (
    Heading("item"),
    Heading("time"),
    Heading("size", right=True),
    Heading("reason", folds=True),
    Heading("from", folds=True),
)


def add_gc(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    of_size, of_age = make_type(units.parse_size, units.SIZES), make_type(units.parse_age, units.AGES)
    parser.add_argument("--max-bytes", type=of_size, metavar="10G", help="overrides SAFECACHE_LIMITS=bytes=…")
    parser.add_argument("--max-files", type=number, metavar="N", help="overrides SAFECACHE_LIMITS=files=…")
    parser.add_argument("--max-age", type=of_age, metavar="30d", help="overrides SAFECACHE_LIMITS=age=…")
    add_remote(parser, instead="sweep a remote cache instead, oldest items first")
    parser.add_argument("--quiet", action="store_true", help="print nothing, and run at low priority")
    parser.add_argument("--all", action="store_true", help="delete everything not in use")
    parser.add_argument("--force", action="store_true", help="with --all, also delete what is in use or was recently")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    add_directories(parser)
    add_json(parser)


def run_gc(arguments: argparse.Namespace) -> View:
    """Sweep each directory; 1 if one still exceeds a limit, or is not clean. Raises SafecacheError or OSError."""
    if arguments.quiet:
        os.nice(19)
    if arguments.all:
        found = _sweep_caches(arguments, _NOTHING, heed_jobs=not arguments.force)
    elif arguments.remote is not None:
        found = _sweep_remote(arguments)
    else:
        settings = config.current()
        limits = Limits(
            arguments.max_bytes or settings.max_bytes,
            arguments.max_files or settings.max_files,
            arguments.max_age or settings.max_age,
        )
        if limits == Limits():
            print("safecache gc: no limit is set, by an option or SAFECACHE_LIMITS", file=sys.stderr)
        found = _sweep_caches(arguments, limits)
    return View(None, (), found.code) if arguments.quiet else found


def _sweep_remote(arguments: argparse.Namespace) -> View:
    """1 if something could not be removed.

    The limits are those alone that are given here: what others keep there is not this host's to choose.
    """
    if arguments.max_files or not (arguments.max_bytes or arguments.max_age):
        raise UsageError("--remote takes --max-bytes, --max-age or both, and nothing else")
    remote, held = list_remote(arguments)
    if any(each.stored.modified is None for each in held):
        text = (
            "does not tell when something was written, and expires by itself: ttl in SAFECACHE_TIERS, maxmemory-policy"
        )
        raise SafecacheError(f"{remote.shown} {text}")
    going = copies.choose_oldest(held, time.time(), arguments.max_bytes, arguments.max_age)
    stuck = [] if arguments.dry_run else copies.remove_held(remote, going)
    chosen, failed, all_held = (
        {"groups": len(those), "bytes": copies.sum_sizes(those)} for those in (going, stuck, held)
    )
    gone = {what: number - failed[what] for what, number in chosen.items()}
    left = {what: number - gone[what] for what, number in all_held.items()}
    parts = [f"{write_count(each['groups'], 'group')}, {write_size(each['bytes'])}" for each in (gone, failed, left)]
    lines = [f"{remote.shown}: {parts[0]} removed; {parts[2]} are there now"]
    lines += [f"  {parts[1]} could not be removed"] if stuck else []
    data = {"remote": remote.shown, "removed": gone, "failed": failed, "left": left}
    return View(data, lines, int(bool(stuck)))


def _sweep_caches(arguments: argparse.Namespace, limits: Limits, *, heed_jobs: bool = True) -> View:
    """Sweep each directory; show what was removed, what stays and why, and the size. Code 1 if something stays."""
    reports: dict[str, dict[str, Any] | None] = {}
    lines, is_clean = list[str](), True
    for directory in arguments.directories or levels.list_caches(config.copy_environment()):
        sweep = eviction.sweep(directory, limits, heed_jobs=heed_jobs, dry_run=arguments.dry_run)
        if sweep is None:
            reports[directory] = None
            lines.append(f"{directory}: another process is removing from it")
            # Which keeps its limits, and does not empty it.
            is_clean &= not arguments.all
        else:
            reports[directory] = report = _report_sweep(sweep)
            lines += _format_report(directory, report)
            is_clean &= not sweep.kept
    return View({"directories": reports}, lines, int(not is_clean))


def _report_sweep(sweep: Sweep) -> dict[str, Any]:
    reasons = sorted({why for _, why in sweep.kept})
    return {
        "removed": _sum_groups(sweep.removed) | {"kinds": dict(Counter(group.kind.plural for group in sweep.removed))},
        "kept": {why: _sum_groups(group for group, reason in sweep.kept if reason == why) for why in reasons},
        "left": {"files": sweep.files, "bytes": sweep.size},
        "reaped_bytes": sweep.reaped,
    }


def _sum_groups(groups: Iterable[Group]) -> dict[str, Any]:
    found = list(groups)
    sizes = {"files": sum(len(group.all_files) for group in found), "bytes": sum(group.size for group in found)}
    return {"groups": len(found)} | sizes


def _format_report(directory: str, report: dict[str, Any]) -> Iterator[str]:
    removed, left = report["removed"], report["left"]
    kinds = ", ".join(f"{count} of {kind}" for kind, count in sorted(removed["kinds"].items()))
    yield f"{directory}: {_format_sums(removed)} removed{f' ({kinds})' if kinds else ''}"
    if report["reaped_bytes"]:
        yield f"  {write_size(report['reaped_bytes'])} of dead writers removed"
    for why, sums in report["kept"].items():
        yield f"  {_format_sums(sums)} left: {why}"
    yield f"  {write_count(left['files'], 'file')}, {write_size(left['bytes'])} are there now"


def _format_sums(sums: dict[str, Any]) -> str:
    counts = write_count(sums["groups"], "group"), write_count(sums["files"], "file"), write_size(sums["bytes"])
    return ", ".join(counts)


def add_forget(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    text = "hash, or its beginning, as printed by `safecache ls --crashed`"
    which.add_argument("hash", nargs="?", metavar="HASH", help=text)
    which.add_argument("--all", action="store_true", help="clear all, and crash-loop strikes")
    parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)


def add_quarantine(parser: argparse.ArgumentParser) -> None:
    """Add its arguments, and its actions."""
    add_places(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_places(actions.add_parser("list", help="list items with origin and reason (default)"), again=True)
    for action, help in (
        ("show", "show an item, and if it would be accepted now"),
        ("restore", "put it back, if accepted"),
    ):
        of_one = actions.add_parser(action, help=help)
        of_one.add_argument("items", nargs=1, metavar="ITEM", help=_ITEM_HELP)
        add_places(of_one, again=True)
    rm = actions.add_parser("rm", help="delete items")
    which = rm.add_mutually_exclusive_group(required=True)
    which.add_argument("items", nargs="*", default=[], metavar="ITEM", help=_ITEM_HELP)
    which.add_argument("--all", action="store_true", help="delete every item")
    add_places(rm, again=True)


def run_quarantine(arguments: argparse.Namespace) -> View:
    """List it, or act on items; 1 if an item could not be removed. Raises SafecacheError or OSError."""
    found = audit.list_quarantined(find_caches(arguments))
    if arguments.action in (None, "list"):
        rows = [(each.name, each.time, write_size(each.size), each.reason, each.origin) for each in found]
        table = [Table(_HEADINGS, [[cell or "-" for cell in row] for row in rows])] if found else []
        total = f"{len(found)} in quarantine, {write_size(sum(item.size for item in found))}"
        return View({"items": [_report_item(item) for item in found]}, [*table, total])
    if arguments.action == "rm":
        return _remove_items(found if arguments.all else [_find_item(name, found) for name in arguments.items])
    item = _find_item(arguments.items[0], found)
    return _show_item(item) if arguments.action == "show" else _restore_item(item)


def _find_item(name: str, found: list[Quarantined]) -> Quarantined:
    """Find the item of this name. Raises SafecacheError if the name is unknown or ambiguous."""
    matching = [item for item in found if item.name == name] or [item for item in found if item.name.startswith(name)]
    if len(matching) != 1:
        several = ", ".join(item.path for item in matching)
        raise SafecacheError(
            f"{name}: {f'{len(matching)} are called so: {several}' if matching else 'nothing is called so'}"
        )
    return matching[0]


def _report_item(item: Quarantined) -> dict[str, Any]:
    return {
        "item": item.name,
        "path": item.path,
        "from": item.origin,
        "reason": item.reason,
        "time": item.time,
        "files": item.files,
        "bytes": item.size,
    }


def _show_item(item: Quarantined) -> View:
    objection, report = audit.find_objection(item), _report_item(item)
    lines = [f"{name + ':':<8}{value if value != '' else 'not known'}" for name, value in report.items()]
    would = f"It would be refused again: {objection}" if objection else "It would be taken now: `restore` puts it back"
    return View(report | {"refused": objection}, [*lines, f"{would}."])


def _restore_item(item: Quarantined) -> View:
    try:
        path = audit.restore_quarantined(item)
    except FileExistsError:
        raise EntryRefusedError(f"{item.name} is not restored: where it lay, something lies again") from None
    return View({"item": item.name, "restored": path}, [f"{item.name} is back: {path}"])


def _remove_items(items: list[Quarantined]) -> View:
    left = [item for item in items if not audit.remove_quarantined(item)]
    gone = [item for item in items if item not in left]
    size = sum(item.size for item in gone)
    data = {"removed": [item.name for item in gone], "bytes": size, "left": [item.name for item in left]}
    complaints = [Complaint(f"left {item.path}: it cannot be removed") for item in left]
    return View(data, [f"{len(gone)} removed, {write_size(size)}", *complaints], int(bool(left)))


def run_forget(arguments: argparse.Namespace) -> View:
    """Forget crashes. Raises SafecacheError or OSError."""
    roots = list(_find_roots(find_caches(arguments)))
    found = [
        (root, hash) for root in roots for hash in crashes.list_hashes(root) if hash.startswith(arguments.hash or "")
    ]
    forgotten = sum(int(crashes.forget(root, hash)) for root, hash in found)
    if arguments.hash is None:
        forgotten += sum(strikes.forget(root) for root in roots)
    elif not forgotten:
        raise SafecacheError(f"no kernel of the hash {arguments.hash} is skipped")
    return View(None, [f"{forgotten} forgotten"])


def _find_roots(caches: Iterable[str]) -> Iterator[str]:
    for directory in caches:
        os.scandir(directory).close()
        yield from layout.find_triton_caches(directory)


def view_crashes(caches: Iterable[str]) -> View:
    """Show what has crashed in these caches. Raises OSError."""
    roots = list(_find_roots(caches))
    found = [row for root in roots for row in list_crashes(root)]
    first_runs = list(audit.list_struck(roots))
    lines = []
    for row in found:
        state = "skipped" if row["skipped"] else "compiled again"
        lines.append(f"{row['hash'][:_SHOWN]} {row['time']} {row['kernel']} {row['stage']}: {row['ended']} ({state})")
        lines += [f"  {row['report']}"] if row["report"] else []
    for each in first_runs:
        lines.append(f"{each.hash[:_SHOWN]} {units.write_time(each.moment)} first run of {each.what} ({each.state})")
    rows = [each._asdict() | {"moment": units.write_time(each.moment), "state": each.state} for each in first_runs]
    return View({"crashed": found, "first_runs": rows}, lines)


def list_crashes(root: str) -> Iterator[dict[str, Any]]:
    """List what has crashed Triton's compiler, by its reports and by what is skipped for it."""
    notes = dict(crashes.iter_notes(root))
    for path, summary in crashes.list_reports(root).items():
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
            "time": units.write_time(note.moment),
            "kernel": note.kernel,
            "stage": note.crash.stage,
            "ended": note.crash.words,
            "skipped": True,
            "report": None,
        }
