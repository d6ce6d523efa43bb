"""``safecache ls --sum``: what caches hold, by kind, and when it was last used; or what the remote cache holds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

from safecache.cli.arguments import find_caches, remote_of
from safecache.cli.view import Heading, Table, View
from safecache.errors import SafecacheError
from safecache.remote.client import Unavailable
from safecache.reporting.kinds import Kind
from safecache.settings import config, timestamps
from safecache.settings.units import write_age, write_size
from safecache.store.groups import KINDS
from safecache.upkeep import inventory, remote_contents
from safecache.upkeep.remote_contents import Held

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> View:
    """Sum up each directory, or the remote. Raises OSError for one that cannot be read."""
    if arguments.remote is not None:
        return _view_remote(arguments)
    reports = [_report(directory) for directory in find_caches(arguments)]
    text: list[str | Table] = []
    for report in reports:
        rows = [*report["kinds"].items(), *((name, report[name]) for name in ("other", "total"))]
        text += [report["directory"], _table(rows, ("groups", "files", "bytes", "oldest_use", "newest_use"))]
    return View({"directories": reports}, text)


def _report(directory: str) -> dict[str, Any]:
    found = inventory.take(directory)
    kinds: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        groups = [group for group in found.groups if group.kind is kind]
        if groups:
            used = [max(group.stamps) for group in groups]
            kinds[kind.plural] = {
                "groups": len(groups),
                "files": sum(len(group.all_files) for group in groups),
                "bytes": sum(group.size for group in groups),
                "oldest_use": timestamps.write_stamp(min(used)),
                "newest_use": timestamps.write_stamp(max(used)),
            }
    other = {"files": len(found.other), "bytes": sum(file.size for file in found.other)}
    total = {what: sum(row[what] for row in [*kinds.values(), other]) for what in ("files", "bytes")}
    return {"directory": directory, "kinds": kinds, "other": other, "total": total}


def _table(rows: Iterable[tuple[str, dict[str, Any]]], names: tuple[str, ...]) -> Table:
    """A row for each kind, with these of its numbers, as far as it has them, and how long ago these moments are."""

    def write(name: str, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return f"{write_age(max(0.0, time.time() - timestamps.parse(value)))} ago"
        return write_size(value) if name == "bytes" else str(value)

    headings = ("size" if name == "bytes" else name.replace("_", " ") for name in names)
    cells = [[kind, *(write(name, row.get(name)) for name in names)] for kind, row in rows]
    return Table([Heading("kind"), *(Heading(name, right=True) for name in headings)], cells)


def _view_remote(arguments: argparse.Namespace) -> View:
    remote = remote_of(arguments)
    try:
        held = remote_contents.listed(remote)
    except Unavailable:
        raise SafecacheError(f"{remote.shown} cannot be listed") from None
    by_kind = {kind.plural or kind.noun: [each for each in held if each.kind is kind] for kind in Kind}
    by_kind["other"] = [each for each in held if each.kind is None]
    kinds = {name: _sum(found) for name, found in by_kind.items() if found}
    namespace, total = config.current().namespace, _sum(held)
    # Redis does not tell when something was written.
    table = _table([*kinds.items(), ("total", total)], ("groups", "of_this_build", "bytes", "oldest", "newest"))
    data = {"remote": remote.shown, "namespace": namespace, "kinds": kinds, "total": total}
    return View(data, [f"{remote.shown}, namespace {namespace}", table])


def _sum(held: list[Held]) -> dict[str, Any]:
    written = [each.stored.modified for each in held if each.stored.modified is not None]
    return {
        "groups": len(held),
        "of_this_build": sum(each.is_of_this_build for each in held),
        "bytes": remote_contents.sizes(held),
        "oldest": timestamps.write_stamp(min(written)) if written else None,
        "newest": timestamps.write_stamp(max(written)) if written else None,
    }
