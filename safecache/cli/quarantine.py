"""``safecache quarantine``: what lies there, why, from where; put back where it verifies by now, or removed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from safecache.cli import ls, tables
from safecache.cli.arguments import add_places
from safecache.cli.tables import Heading
from safecache.errors import EntryRefusedError, printable
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


def run(arguments: argparse.Namespace) -> int:
    """Run one of its actions; 1 if an item is missing or could not be removed. Raises SafecacheError or OSError."""
    found = quarantined.listed(ls.directories_of(arguments))
    action = arguments.action or "list"
    if action == "list":
        return _list(found, as_json=arguments.json)
    if action == "rm":
        return _remove(found if arguments.all else _named(arguments.items, found), as_json=arguments.json)
    items = _named(arguments.items, found)
    if items is None:
        return 1
    act: Callable[[Quarantined, bool], int] = {"show": _show, "restore": _restore}[action]
    return act(items[0], arguments.json)


def _named(names: list[str], found: list[Quarantined]) -> list[Quarantined] | None:
    """The item for each name; None, with a message, if a name is unknown or ambiguous."""
    items = []
    for name in names:
        matching = [item for item in found if item.name == name] or [
            item for item in found if item.name.startswith(name)
        ]
        if len(matching) != 1:
            several = "".join(f"\n  {printable(item.path)}" for item in matching)
            told = f"{len(matching)} are called so:{several}" if matching else "nothing is called so"
            print(f"safecache quarantine: {printable(name)}: {told}", file=sys.stderr)
            return None
        items += matching
    return items


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


def _list(found: list[Quarantined], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"items": [_report(item) for item in found]}))
        return 0
    if found:
        tables.show(
            _HEADINGS,
            (
                (item.name, item.time or "-", write_size(item.size), item.reason or "-", item.origin or "-")
                for item in found
            ),
        )
    print(f"{len(found)} in quarantine, {write_size(sum(item.size for item in found))}")
    return 0


def _show(item: Quarantined, as_json: bool) -> int:
    objection = quarantined.objection(item)
    report = _report(item) | {"refused": objection}
    if as_json:
        print(json.dumps(report))
        return 0
    for name, value in report.items():
        if name != "refused":
            print(printable(f"{name + ':':<8}{value if value != '' else 'not known'}"))
    would = f"It would be refused again: {objection}" if objection else "It would be taken now: `restore` puts it back"
    print(printable(f"{would}."))
    return 0


def _restore(item: Quarantined, as_json: bool) -> int:
    try:
        path = quarantined.restore(item)
    except FileExistsError:
        raise EntryRefusedError(f"{item.name} is not restored: where it lay, something lies again") from None
    print(json.dumps({"item": item.name, "restored": path}) if as_json else printable(f"{item.name} is back: {path}"))
    return 0


def _remove(items: list[Quarantined] | None, *, as_json: bool) -> int:
    if items is None:
        return 1
    left = [item for item in items if not quarantined.remove(item)]
    gone = [item for item in items if item not in left]
    if as_json:
        report = {"removed": [item.name for item in gone], "bytes": sum(item.size for item in gone)}
        print(json.dumps(report | {"left": [item.name for item in left]}))
    else:
        print(f"{len(gone)} removed, {write_size(sum(item.size for item in gone))}")
        for item in left:
            print(printable(f"left {item.path}: it cannot be removed"), file=sys.stderr)
    return int(bool(left))
