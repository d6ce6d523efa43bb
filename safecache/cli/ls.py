"""``safecache ls``: what lies in caches, a line for each kernel, graph or library; or with ``--sum``, for each kind."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from safecache.cli import quarantine
from safecache.cli.arguments import add_directories, add_json, add_remote, find_caches, number, remote_of
from safecache.cli.view import Heading, Table, View
from safecache.errors import SafecacheError
from safecache.files import parallel
from safecache.remote.client import Client, Unavailable
from safecache.reporting.kinds import Kind
from safecache.settings import config, timestamps
from safecache.settings.units import write_age, write_size
from safecache.signing import keyring
from safecache.store.groups import KINDS
from safecache.upkeep import catalogue, inventory, remote_contents
from safecache.upkeep.catalogue import Catalogue, Description, Item
from safecache.upkeep.remote_contents import Held

__all__ = [
    "USUAL",
    "Row",
    "add",
    "cells",
    "describe",
    "report",
    "run",
    "signer_name",
    "table",
]

# What is in the way, or was there for something else, is listed only by its kind.
USUAL = ("aot", "fx", "triton", "code", "autotune", "header")
_SHORTEST_KEY = 10
_HEADINGS = (
    Heading("name", folds=True),
    Heading("key"),
    Heading("kind"),
    *(Heading(name, right=True) for name in ("size", "age", "used")),
    *(Heading(name, folds=True) for name in ("gpu", "built with", "seal")),
)


class Row(NamedTuple):
    """A group of files, and its description as read from them."""

    item: Item
    description: Description


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_directories(parser)
    parser.add_argument("--sum", action="store_true", help="what they hold, by kind, and when it was used, instead")
    add_remote(parser, instead="with --sum, what that holds of this namespace")
    parser.add_argument(
        "--kind", action="append", choices=(*KINDS, "all"), help="of this kind, or these; all that compiles use"
    )
    parser.add_argument("--sort", choices=("size", "age", "used", "name"), default="used", help="by default, used last")
    parser.add_argument("--limit", type=number, metavar="N", help="the first N")
    parser.add_argument(
        "--crashed", action="store_true", help="what has crashed Triton's compiler, or a first run, instead"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> View:
    """List it. Raises SafecacheError, or OSError for a directory that cannot be read."""
    if arguments.crashed:
        return quarantine.view_crashes(find_caches(arguments))
    if arguments.remote is not None:
        return _sum_remote(remote_of(arguments))
    if arguments.sum:
        return _sum_caches(find_caches(arguments))
    words = arguments.kind or USUAL
    kinds = set(KINDS.values()) if "all" in words else {KINDS[word] for word in words}
    found = catalogue.take(find_caches(arguments), kinds | {Kind.FX_ENTRY})
    rows = _rows(found, kinds, arguments.sort, arguments.limit)
    total = sum(item.group.kind in kinds for item in found.items)
    files, size = found.other
    more = f", {len(rows)} of them shown" if len(rows) < total else ""
    return View(
        {"entries": [report(row) for row in rows], "total": total, "other": {"files": files, "bytes": size}},
        [*table(rows, found), f"{total} in all{more}; {files} other files, {write_size(size)}"],
    )


def _rows(found: Catalogue, kinds: set[Kind], sort: str, limit: int | None) -> list[Row]:
    """Only what is shown is read, unless it is to be sorted by what has to be read."""
    items = sorted((item for item in found.items if item.group.kind in kinds), key=_ORDERS[sort])
    if sort == "name":
        rows = describe(items, found)
        rows.sort(key=lambda row: (not row.description.name, row.description.name))
        return rows[:limit]
    return describe(items[:limit], found)


_ORDERS: dict[str, Callable[[Item], tuple[Any, ...]]] = {
    "size": lambda item: (-item.size, _place(item)),
    "age": lambda item: (item.made, _place(item)),
    "used": lambda item: (-item.used, _place(item)),
    "name": lambda item: _place(item),
}


def _place(item: Item) -> tuple[str, ...]:
    return item.group.kind.word, item.group.name, item.directory, item.group.root


def describe(items: Sequence[Item], found: Catalogue) -> list[Row]:
    """A row for each item, except those removed since they were listed."""
    known = found.known
    keyring.current()  # here, in one thread: the first use creates a key

    def described(item: Item) -> Description | None:
        return catalogue.describe(item, known)

    descriptions = parallel.map_in_threads(described, items)
    return [Row(item, said) for item, said in zip(items, descriptions, strict=True) if said is not None]


def report(row: Row) -> dict[str, Any]:
    """The row as JSON data."""
    item, said = row
    return {
        "name": said.name,
        "key": item.group.name,
        "kind": item.group.kind.word,
        "directory": item.directory,
        "paths": item.group.paths,
        "files": len(item.group.all_files),
        "bytes": item.size,
        "made": timestamps.write_stamp(item.made),
        "used": timestamps.write_stamp(item.used),
        "gpu": said.gpu,
        "torch": said.torch,
        "triton": said.triton,
        "signers": [{"id": signer, "name": signer_name(signer)} for signer in said.signers],
        "states": dict(said.states),
    }


def signer_name(key_id: str) -> str:
    """The name of the trusted key with this id; "" if it has none or is not known."""
    key = keyring.current(tell=False).trusted.get(bytes.fromhex(key_id))
    return key.name if key is not None else ""


def table(rows: Sequence[Row], found: Catalogue) -> list[Table]:
    """A table of the rows, with unambiguous beginnings of keys; none if there are none."""
    short = _shortened({item.group.name for item in found.items})
    now = time.time()
    return [Table(_HEADINGS, (cells(row, short[row.item.group.name], now) for row in rows))] if rows else []


def cells(row: Row, key: str, now: float) -> list[str]:
    """The row of the table, with ``key`` in place of its key: name, key, kind, size, age, use, GPU, build, seal."""
    item, said = row
    ages = [write_age(max(0.0, now - stamp)) for stamp in (item.made, item.used)]
    versions = [f"{what} {version}" for what, version in (("torch", said.torch), ("triton", said.triton)) if version]
    state = ", ".join(f"{count} {state}" for state, count in sorted(said.states.items())) or "-"
    if len(said.states) == 1:
        (state,) = said.states
    signers = " ".join(signer_name(signer) or signer[:8] for signer in said.signers)
    return [
        said.name or "-",
        key,
        item.group.kind.word,
        write_size(item.size),
        *ages,
        said.gpu or "-",
        " ".join(versions) or "-",
        f"{state} {signers}".strip(),
    ]


def _shortened(names: set[str]) -> dict[str, str]:
    """For each name, a beginning that no other name shares."""
    lengths = dict.fromkeys(names, _SHORTEST_KEY)
    for one, other in itertools.pairwise(sorted(names)):
        alike = itertools.takewhile(lambda letters: letters[0] == letters[1], zip(one, other, strict=False))
        needed = sum(1 for _ in alike) + 1
        lengths[one], lengths[other] = max(lengths[one], needed), max(lengths[other], needed)
    return {name: name[:length] for name, length in lengths.items()}


def _sum_caches(directories: Iterable[str]) -> View:
    reports = [_sum_cache(directory) for directory in directories]
    text: list[str | Table] = []
    for each in reports:
        rows = [*each["kinds"].items(), *((name, each[name]) for name in ("other", "total"))]
        text += [each["directory"], _sum_table(rows, ("groups", "files", "bytes", "oldest_use", "newest_use"))]
    return View({"directories": reports}, text)


def _sum_cache(directory: str) -> dict[str, Any]:
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


def _sum_table(rows: Iterable[tuple[str, dict[str, Any]]], names: tuple[str, ...]) -> Table:
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


def _sum_remote(remote: Client) -> View:
    try:
        held = remote_contents.listed(remote)
    except Unavailable:
        raise SafecacheError(f"{remote.shown} cannot be listed") from None
    by_kind = {kind.plural or kind.noun: [each for each in held if each.kind is kind] for kind in Kind}
    by_kind["other"] = [each for each in held if each.kind is None]
    kinds = {name: _sum_held(found) for name, found in by_kind.items() if found}
    namespace, total = config.current().namespace, _sum_held(held)
    # Redis does not tell when something was written.
    table = _sum_table([*kinds.items(), ("total", total)], ("groups", "of_this_build", "bytes", "oldest", "newest"))
    data = {"remote": remote.shown, "namespace": namespace, "kinds": kinds, "total": total}
    return View(data, [f"{remote.shown}, namespace {namespace}", table])


def _sum_held(held: list[Held]) -> dict[str, Any]:
    written = [each.stored.modified for each in held if each.stored.modified is not None]
    return {
        "groups": len(held),
        "of_this_build": sum(each.is_of_this_build for each in held),
        "bytes": remote_contents.sizes(held),
        "oldest": timestamps.write_stamp(min(written)) if written else None,
        "newest": timestamps.write_stamp(max(written)) if written else None,
    }
