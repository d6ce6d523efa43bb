"""``safecache quarantine``: what lies there, why, from where; put back where it verifies by now, or removed.

And ``ls --crashed`` and ``forget``: what crashes Triton's compiler, and what crashes when it is run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import Any

from safecache.cli.arguments import DIRECTORY_HELP, add_places, find_caches
from safecache.cli.view import Complaint, Heading, Table, View
from safecache.errors import EntryRefusedError, SafecacheError
from safecache.isolation import crashes
from safecache.places import layout
from safecache.settings import timestamps
from safecache.settings.units import write_size
from safecache.trials import strikes
from safecache.upkeep import quarantined
from safecache.upkeep.quarantined import Quarantined

__all__ = ["add", "crash_rows", "run", "view_crashes"]

_ITEM_HELP = "as `safecache quarantine` shows it, or the beginning of it that no other has"
# Letters of a hash.
_SHOWN = 16
_HEADINGS = (
    Heading("item"),
    Heading("time"),
    Heading("size", right=True),
    Heading("reason", folds=True),
    Heading("from", folds=True),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of these commands."""
    if parser.get_default("command") == "forget":
        which = parser.add_mutually_exclusive_group(required=True)
        text = "as `safecache ls --crashed` shows it, or more of it"
        which.add_argument("hash", nargs="?", metavar="HASH", help=text)
        which.add_argument("--all", action="store_true", help="all, and what crashed in its first run")
        parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
        return
    add_places(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add_places(actions.add_parser("list", help="what there is, from where and why; the default"), again=True)
    for action, help in (("show", "what it is, and if a load would take it now"), ("restore", "put it back, if so")):
        of_one = actions.add_parser(action, help=help)
        of_one.add_argument("items", nargs=1, metavar="ITEM", help=_ITEM_HELP)
        add_places(of_one, again=True)
    rm = actions.add_parser("rm", help="remove it")
    which = rm.add_mutually_exclusive_group(required=True)
    which.add_argument("items", nargs="*", default=[], metavar="ITEM", help=_ITEM_HELP)
    which.add_argument("--all", action="store_true", help="all of it")
    add_places(rm, again=True)


def run(arguments: argparse.Namespace) -> View:
    """Run one of these; 1 if an item is missing or could not be removed. Raises SafecacheError or OSError."""
    if arguments.command == "forget":
        return _forget(arguments)
    found = quarantined.listed(find_caches(arguments))
    if arguments.action in (None, "list"):
        rows = [(each.name, each.time, write_size(each.size), each.reason, each.origin) for each in found]
        table = [Table(_HEADINGS, [[cell or "-" for cell in row] for row in rows])] if found else []
        total = f"{len(found)} in quarantine, {write_size(sum(item.size for item in found))}"
        return View({"items": [_report(item) for item in found]}, [*table, total])
    if arguments.action == "rm":
        return _remove(found if arguments.all else [_find(name, found) for name in arguments.items])
    item = _find(arguments.items[0], found)
    return _show(item) if arguments.action == "show" else _restore(item)


def _find(name: str, found: list[Quarantined]) -> Quarantined:
    """Find the item of this name. Raises SafecacheError if the name is unknown or ambiguous."""
    matching = [item for item in found if item.name == name] or [item for item in found if item.name.startswith(name)]
    if len(matching) != 1:
        several = ", ".join(item.path for item in matching)
        raise SafecacheError(
            f"{name}: {f'{len(matching)} are called so: {several}' if matching else 'nothing is called so'}"
        )
    return matching[0]


def _report(item: Quarantined) -> dict[str, Any]:
    return {
        "item": item.name,
        "path": item.path,
        "from": item.origin,
        "reason": item.reason,
        "time": item.time,
        "files": item.files,
        "bytes": item.size,
    }


def _show(item: Quarantined) -> View:
    objection, report = quarantined.objection(item), _report(item)
    lines = [f"{name + ':':<8}{value if value != '' else 'not known'}" for name, value in report.items()]
    would = f"It would be refused again: {objection}" if objection else "It would be taken now: `restore` puts it back"
    return View(report | {"refused": objection}, [*lines, f"{would}."])


def _restore(item: Quarantined) -> View:
    try:
        path = quarantined.restore(item)
    except FileExistsError:
        raise EntryRefusedError(f"{item.name} is not restored: where it lay, something lies again") from None
    return View({"item": item.name, "restored": path}, [f"{item.name} is back: {path}"])


def _remove(items: list[Quarantined]) -> View:
    left = [item for item in items if not quarantined.remove(item)]
    gone = [item for item in items if item not in left]
    size = sum(item.size for item in gone)
    data = {"removed": [item.name for item in gone], "bytes": size, "left": [item.name for item in left]}
    complaints = [Complaint(f"left {item.path}: it cannot be removed") for item in left]
    return View(data, [f"{len(gone)} removed, {write_size(size)}", *complaints], int(bool(left)))


def _forget(arguments: argparse.Namespace) -> View:
    roots = list(_roots(find_caches(arguments)))
    found = [(root, hash) for root in roots for hash in crashes.hashes(root) if hash.startswith(arguments.hash or "")]
    forgotten = sum(int(crashes.forget(root, hash)) for root, hash in found)
    if arguments.hash is None:
        forgotten += sum(strikes.forget(root) for root in roots)
    elif not forgotten:
        raise SafecacheError(f"no kernel of the hash {arguments.hash} is skipped")
    return View(None, [f"{forgotten} forgotten"])


def _roots(caches: Iterable[str]) -> Iterator[str]:
    for directory in caches:
        os.scandir(directory).close()
        yield from layout.triton_caches(directory)


def view_crashes(caches: Iterable[str]) -> View:
    """What has crashed in these caches. Raises OSError."""
    roots = list(_roots(caches))
    found = [row for root in roots for row in crash_rows(root)]
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


def crash_rows(root: str) -> Iterator[dict[str, Any]]:
    """What has crashed Triton's compiler, by its reports and by what is skipped for it."""
    notes = dict(crashes.listed(root))
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
            "time": timestamps.write(note.moment),
            "kernel": note.kernel,
            "stage": note.crash.stage,
            "ended": note.crash.words,
            "skipped": True,
            "report": None,
        }
