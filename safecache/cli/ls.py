"""``safecache ls`` and ``show``: what lies in caches, a line for each kernel, graph or library, or all about one."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from safecache import fingerprints
from safecache.cli import gc
from safecache.cli.view import (
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
    number,
)
from safecache.errors import SafecacheError
from safecache.fs import opening, parallel
from safecache.places.layout import CodeFile, Location
from safecache.remote.client import Client
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import config, units
from safecache.settings.units import write_age, write_count, write_size
from safecache.signing import keyring
from safecache.store.groups import KINDS, File, Group
from safecache.upkeep import audit, catalogue, copies, inventory
from safecache.upkeep.catalogue import Catalogue, Description, Item
from safecache.upkeep.copies import Held

__all__ = ["USUAL", "Row", "add_ls", "add_show", "describe_items", "format_cells", "run_ls", "run_show"]

# What is in the way, or was there for something else, is listed only by its kind.
USUAL = tuple(kind.word for kind in Kind if kind.plural and (kind in ENTRIES or kind.has_record))
_SHORTEST_KEY = 10
_HEADINGS = (
    Heading("name", folds=True),
    Heading("key"),
    Heading("kind"),
    *(Heading(name, right=True) for name in ("size", "age", "used")),
    *(Heading(name, folds=True) for name in ("gpu", "built with", "seal")),
)

_SHOWN = {KINDS[word] for word in (*USUAL, "crash", "known-bad")}


class Row(NamedTuple):
    """A group of files, and its description as read from them."""

    item: Item
    description: Description


def add_ls(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_directories(parser)
    parser.add_argument("--sum", action="store_true", help="sum up by kind, with last use, instead of listing")
    add_remote(parser, instead="with --sum, sum up this namespace of a remote cache")
    parser.add_argument(
        "--kind", action="append", choices=(*KINDS, "all"), help="kind to list; by default all that compiles use"
    )
    parser.add_argument(
        "--sort", choices=("size", "age", "used", "name"), default="used", help="default: used, last first"
    )
    parser.add_argument("--limit", type=number, metavar="N", help="list only the first N")
    parser.add_argument("--crashed", action="store_true", help="list compiler crashes and crashed first runs instead")
    add_json(parser)


def run_ls(arguments: argparse.Namespace) -> View:
    """List it. Raises SafecacheError, or OSError for a directory that cannot be read."""
    if arguments.crashed:
        return gc.view_crashes(find_caches(arguments))
    if arguments.remote is not None:
        return _sum_remote(*list_remote(arguments))
    if arguments.sum:
        return _sum_caches(find_caches(arguments))
    words = arguments.kind or USUAL
    kinds = set(KINDS.values()) if "all" in words else {KINDS[word] for word in words}
    found = catalogue.list_items(find_caches(arguments), kinds | {Kind.FX_ENTRY})
    rows = _select_rows(found, kinds, arguments.sort, arguments.limit)
    total = sum(item.group.kind in kinds for item in found.items)
    files, size = found.other
    more = f", {len(rows)} of them shown" if len(rows) < total else ""
    return View(
        {"entries": [_report_row(row) for row in rows], "total": total, "other": {"files": files, "bytes": size}},
        [*_make_table(rows, found), f"{total} in all{more}; {write_count(files, 'other file')}, {write_size(size)}"],
    )


def _select_rows(found: Catalogue, kinds: set[Kind], sort: str, limit: int | None) -> list[Row]:
    """Only what is shown is read, unless it is to be sorted by what has to be read."""
    items = sorted((item for item in found.items if item.group.kind in kinds), key=_ORDERS[sort])
    if sort == "name":
        rows = describe_items(items, found)
        rows.sort(key=lambda row: (not row.description.name, row.description.name))
        return rows[:limit]
    return describe_items(items[:limit], found)


_ORDERS: dict[str, Callable[[Item], tuple[Any, ...]]] = {
    "size": lambda item: (-item.size, _make_place(item)),
    "age": lambda item: (item.made, _make_place(item)),
    "used": lambda item: (-item.used, _make_place(item)),
    "name": lambda item: _make_place(item),
}


def _make_place(item: Item) -> tuple[str, ...]:
    return item.group.kind.word, item.group.name, item.directory, item.group.root


def describe_items(items: Sequence[Item], found: Catalogue) -> list[Row]:
    """A row for each item, except those removed since they were listed."""
    known = found.known
    keyring.current()  # here, in one thread: the first use creates a key

    def describe_item(item: Item) -> Description | None:
        return catalogue.describe(item, known)

    descriptions = parallel.map_in_threads(describe_item, items)
    return [Row(item, said) for item, said in zip(items, descriptions, strict=True) if said is not None]


def _report_row(row: Row) -> dict[str, Any]:
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
        "made": units.write_stamp(item.made),
        "used": units.write_stamp(item.used),
        "gpu": said.gpu,
        "torch": said.torch,
        "triton": said.triton,
        "signers": [{"id": signer, "name": _find_signer_name(signer)} for signer in said.signers],
        "states": dict(said.states),
    }


def _find_signer_name(key_id: str) -> str:
    """The name of the trusted key with this id; "" if it has none or is not known."""
    key = keyring.current(tell=False).trusted.get(bytes.fromhex(key_id))
    return key.name if key is not None else ""


def _make_table(rows: Sequence[Row], found: Catalogue) -> list[Table]:
    """A table of the rows, with unambiguous beginnings of keys; none if there are none."""
    short = _shorten_names({item.group.name for item in found.items})
    now = time.time()
    return [Table(_HEADINGS, (format_cells(row, short[row.item.group.name], now) for row in rows))] if rows else []


def format_cells(row: Row, key: str, now: float) -> list[str]:
    """The row of the table, with ``key`` in place of its key: name, key, kind, size, age, use, GPU, build, seal."""
    item, said = row
    ages = [write_age(max(0.0, now - stamp)) for stamp in (item.made, item.used)]
    versions = [f"{what} {version}" for what, version in (("torch", said.torch), ("triton", said.triton)) if version]
    state = ", ".join(f"{count} {state}" for state, count in sorted(said.states.items())) or "-"
    if len(said.states) == 1:
        (state,) = said.states
    signers = " ".join(_find_signer_name(signer) or signer[:8] for signer in said.signers)
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


def _shorten_names(names: set[str]) -> dict[str, str]:
    """Map each name to a beginning of it that no other name shares."""
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
        text += [each["directory"], _show_sums(rows, ("groups", "files", "bytes", "oldest_use", "newest_use"))]
    return View({"directories": reports}, text)


def _sum_cache(directory: str) -> dict[str, Any]:
    found = inventory.take_inventory(directory)
    kinds: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        groups = [group for group in found.groups if group.kind is kind]
        if groups:
            used = [max(group.stamps) for group in groups]
            kinds[kind.plural] = {
                "groups": len(groups),
                "files": sum(len(group.all_files) for group in groups),
                "bytes": sum(group.size for group in groups),
                "oldest_use": units.write_stamp(min(used)),
                "newest_use": units.write_stamp(max(used)),
            }
    other = {"files": len(found.other), "bytes": sum(file.size for file in found.other)}
    total = {what: sum(row[what] for row in [*kinds.values(), other]) for what in ("files", "bytes")}
    return {"directory": directory, "kinds": kinds, "other": other, "total": total}


def _show_sums(rows: Iterable[tuple[str, dict[str, Any]]], names: tuple[str, ...]) -> Table:
    """A row for each kind, with these of its numbers, as far as it has them, and how long ago these moments are."""

    def write(name: str, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return f"{write_age(max(0.0, time.time() - units.parse_time(value)))} ago"
        return write_size(value) if name == "bytes" else str(value)

    headings = ("size" if name == "bytes" else name.replace("_", " ") for name in names)
    cells = [[kind, *(write(name, row.get(name)) for name in names)] for kind, row in rows]
    return Table([Heading("kind"), *(Heading(name, right=True) for name in headings)], cells)


def _sum_remote(remote: Client, held: list[Held]) -> View:
    by_kind = {kind.plural or kind.noun: [each for each in held if each.kind is kind] for kind in Kind}
    by_kind["other"] = [each for each in held if each.kind is None]
    kinds = {name: _sum_held(found) for name, found in by_kind.items() if found}
    namespace, total = config.current().namespace, _sum_held(held)
    # Redis does not tell when something was written.
    table = _show_sums([*kinds.items(), ("total", total)], ("groups", "of_this_build", "bytes", "oldest", "newest"))
    data = {"remote": remote.shown, "namespace": namespace, "kinds": kinds, "total": total}
    return View(data, [f"{remote.shown}, namespace {namespace}", table])


def _sum_held(held: list[Held]) -> dict[str, Any]:
    written = [each.stored.modified for each in held if each.stored.modified is not None]
    return {
        "groups": len(held),
        "of_this_build": sum(each.is_of_this_build for each in held),
        "bytes": copies.sum_sizes(held),
        "oldest": units.write_stamp(min(written)) if written else None,
        "newest": units.write_stamp(max(written)) if written else None,
    }


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "name", metavar="NAME|KEY|PATH", help="name of a kernel or function, key or its beginning, or path of a file"
    )
    add_places(parser)


def run_show(arguments: argparse.Namespace) -> View:
    """Tell all about it; 1 if several match, or a load would refuse a file. Raises SafecacheError or OSError."""
    found = catalogue.list_items(find_caches(arguments), _SHOWN)
    rows = _find_matching(arguments.name, found)
    if not rows:
        raise SafecacheError(f"nothing is called {arguments.name} there")
    if len({row.item.group.name for row in rows}) > 1:
        several = Complaint(f"safecache show: {len(rows)} are called so: give the key of one")
        return View({"matches": [_report_row(row) for row in rows]}, [*_make_table(rows, found), several], 1)
    reports = [_report_details(row) for row in rows]
    is_refused = any(file["refused"] for each in reports for file in each["contents"])
    return View({"entries": reports}, itertools.chain.from_iterable(map(_format_report, reports)), int(is_refused))


def _find_matching(text: str, found: Catalogue) -> list[Row]:
    """The matches by path, by key or its beginning, or else by name, which requires reading all files."""
    places = set[str]()
    if os.sep in text:
        path = os.path.abspath(text)
        places = {path, os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))}
    items = [
        item for item in found.items if places & {*item.group.paths, *(file.path for file in item.group.all_files)}
    ]
    items = items or [item for item in found.items if item.group.name == text]
    items = items or [item for item in found.items if text and item.group.name.startswith(text)]
    if items or places:
        return describe_items(items, found)
    return [row for row in describe_items(found.items, found) if text in row.description.names]


def _report_details(row: Row) -> dict[str, Any]:
    group = row.item.group
    options = (
        catalogue.read_unverified_metadata(file.path for file in group.files).options
        if group.kind is Kind.KERNEL
        else ()
    )
    ring, now, own = keyring.current(tell=False), time.time(), config.current().namespace
    keys = {signer: ring.find(bytes.fromhex(signer)) for signer in row.description.signers}
    trusted = {each for each, key in keys.items() if key and key.find_objection(now) is None and key.can_supply(own)}
    return _report_row(row) | {
        "signers": [{"id": each, "name": _find_signer_name(each), "trusted": each in trusted} for each in keys],
        "provenance": dict(row.description.provenance),
        "options": dict(options),
        "kernels": list(row.description.kernels),
        "refers_to": [
            key for key in catalogue.read_unverified_keys(file.path for file in group.files) if key != group.name
        ],
        "contents": _judge_contents(group),
        "quarantined": list(_list_history(row.item)),
    }


def _judge_contents(group: Group) -> list[dict[str, Any]]:
    """Describe the group's files, without records and lock; those with a seal or record are judged as by a load."""
    paths = {file.path for file in group.files if not os.path.basename(file.path).startswith(".")}
    if group.kind in ENTRIES:
        found = audit.audit([Location(path, group.kind, group.name) for path in paths], [])
    elif group.kind is Kind.KERNEL:
        found = audit.audit([], [CodeFile(path, group.root, Kind.KERNEL) for path in paths])
    else:
        is_code = group.kind in (Kind.NATIVE_CODE, Kind.HEADER)
        paths = {path for path in paths if is_code and path.endswith((".so", ".o", ".gch"))}
        found = audit.audit([], [CodeFile(path, group.root, Kind.NATIVE_CODE) for path in paths])
    refused = {each.path: f"{each.evidence} [{each.reason}]" for each in found.refused}
    return [
        {
            "path": file.path,
            "bytes": file.size,
            "sha256": _digest_file(file),
            "verified": file.path in paths and file.path not in refused,
            "refused": refused.get(file.path),
        }
        for file in group.files
    ]


def _digest_file(file: File) -> str | None:
    """The SHA-256 in hex; None for what is not a regular file or cannot be read."""
    try:
        return opening.digest_regular(file.path, opening.check_regular, flags=os.O_NOFOLLOW).hex()
    except (OSError, opening.UnusableEntry):
        return None


def _list_history(item: Item) -> Iterator[dict[str, str]]:
    """List what was quarantined from the item's place and is still in quarantine."""
    for each in audit.list_quarantined([item.directory]):
        folder, name = os.path.split(each.origin)
        if os.path.basename(folder) == item.group.name or name.startswith(f"{item.group.name}."):
            yield {"item": each.name, "time": each.time, "reason": each.reason}


def _format_report(report: dict[str, Any]) -> Iterator[str | Table]:
    for label, text in _list_fields(report):
        if text:
            yield f"{label + ':':<13}{text}"
    rows = [
        (
            os.path.basename(file["path"]),
            write_size(file["bytes"]),
            "refused" if file["refused"] else "verified" if file["verified"] else "-",
            file["sha256"] or "-",
        )
        for file in report["contents"]
    ]
    yield Table(_FILE_HEADINGS, rows)
    for file in report["contents"]:
        if file["refused"]:
            yield f"refused {file['path']}: {file['refused']}"
    for each in report["quarantined"]:
        yield f"in quarantine: {each['item']}, {each['reason']}, {each['time']}"


_FILE_HEADINGS = (
    Heading("file", folds=True),
    Heading("size", right=True),
    Heading("now"),
    Heading("sha256", folds=True),
)


def _list_fields(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", report["name"]
    yield "kind", KINDS[report["kind"]].plural
    yield "key", report["key"]
    yield "directory", report["directory"]
    yield "made", report["made"]
    yield "last used", report["used"]
    yield "size", f"{write_size(report['bytes'])} in {write_count(report['files'], 'file')}, records included"
    yield "gpu", report["gpu"]
    yield "built with", ", ".join(f"{name} {value}" for name, value in report["provenance"].items() if name in _BUILD)
    yield "options", ", ".join(f"{name} {value}" for name, value in report["options"].items())
    yield "sealed", ", ".join(f"{count} {state}" for state, count in sorted(report["states"].items()))
    for signer in report["signers"]:
        trusted = "trusted here" if signer["trusted"] else "not trusted here"
        yield "signer", " ".join(filter(None, (signer["id"], signer["name"], f"({trusted})")))
    for name, value in report["provenance"].items():
        if name not in (*_BUILD, "gpu", fingerprints.FIELD):
            label, text = _FIELDS.get(name, (name, "{}"))
            yield label, text.format(value) if value else ""
    for refuses, text in fingerprints.describe_items(report["provenance"]):
        yield ("compared" if refuses else "noted"), text
    yield "kernels", ", ".join(report["kernels"][1:] and report["kernels"])
    yield "refers to", ", ".join(report["refers_to"])


_BUILD = ("torch", "triton", "python", "safecache")
# What a seal says besides, and what that means.
_FIELDS = {
    "machine": ("machine", "{}"),
    "cpu": ("needs", "a CPU with {}"),
    "adopted": ("adopted", "{}: a user has said that it is good, and not who made it"),
    "countersigned": ("countersigned", "it was sealed by {} before"),
    "function": ("function", "of the digest {}"),
}
