"""``safecache quarantine``: what lies there, why, from where; put back where it verifies by now, or removed."""

from __future__ import annotations

import argparse
from typing import Any

from safecache.cli.arguments import add_places, find_caches
from safecache.cli.view import Complaint, Heading, Table, View
from safecache.errors import EntryRefusedError, SafecacheError
from safecache.settings.units import write_size
from safecache.upkeep import quarantined
from safecache.upkeep.quarantined import Quarantined

__all__ = ["add", "run"]

_HEADINGS = (
    Heading("item"),
    Heading("time"),
    Heading("size", right=True),
    Heading("reason", folds=True),
    Heading("from", folds=True),
)


_ITEM_HELP = "as `safecache quarantine` shows it, or the beginning of it that no other has"


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
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
    """Run one of its actions; 1 if an item is missing or could not be removed. Raises SafecacheError or OSError."""
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
