"""``safecache show``: everything about one kernel, graph or library, and whether a load would accept it now."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

from safecache import omitted
from safecache.cli import ls
from safecache.cli.arguments import add_places, find_caches
from safecache.cli.ls import Row
from safecache.cli.view import Complaint, Heading, Table, View
from safecache.errors import SafecacheError
from safecache.files import opening
from safecache.places.layout import CodeFile, Location
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.signing import keyring
from safecache.store.groups import KINDS, File, Group
from safecache.upkeep import catalogue, quarantined
from safecache.upkeep.audit import audit
from safecache.upkeep.catalogue import Catalogue, Item

__all__ = ["add", "run"]

_SHOWN = {KINDS[word] for word in (*ls.USUAL, "crash", "known-bad")}


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "name", metavar="NAME|KEY|PATH", help="of a kernel or function; a key, or the beginning of it; or a file of it"
    )
    add_places(parser)


def run(arguments: argparse.Namespace) -> View:
    """Tell all about it; 1 if several match, or a load would refuse a file. Raises SafecacheError or OSError."""
    found = catalogue.take(find_caches(arguments), _SHOWN)
    rows = _matching(arguments.name, found)
    if not rows:
        raise SafecacheError(f"nothing is called {arguments.name} there")
    if len({row.item.group.name for row in rows}) > 1:
        several = Complaint(f"safecache show: {len(rows)} are called so: give the key of one")
        return View({"matches": [ls.report(row) for row in rows]}, [*ls.table(rows, found), several], 1)
    reports = [_report(row) for row in rows]
    is_refused = any(file["refused"] for report in reports for file in report["contents"])
    return View({"entries": reports}, itertools.chain.from_iterable(map(_text, reports)), int(is_refused))


def _matching(text: str, found: Catalogue) -> list[Row]:
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
        return ls.describe(items, found)
    return [row for row in ls.describe(found.items, found) if text in row.description.names]


def _report(row: Row) -> dict[str, Any]:
    group = row.item.group
    options = catalogue.read(file.path for file in group.files).options if group.kind is Kind.KERNEL else ()
    return ls.report(row) | {
        "signers": [_signer(signer) for signer in row.description.signers],
        "provenance": dict(row.description.provenance),
        "options": dict(options),
        "kernels": list(row.description.kernels),
        "refers_to": [key for key in catalogue.keys(file.path for file in group.files) if key != group.name],
        "contents": _contents(group),
        "quarantined": list(_history(row.item)),
    }


def _signer(key_id: str) -> dict[str, Any]:
    ring = keyring.current(tell=False)
    key = ring.find(bytes.fromhex(key_id))
    trusted = key is not None and key.objection(time.time()) is None and key.allows(config.current().namespace)
    return {"id": key_id, "name": ls.signer_name(key_id), "trusted": trusted}


def _contents(group: Group) -> list[dict[str, Any]]:
    """Its files, without records and lock, with what a load would say of those that have a seal or a record."""
    paths = {file.path for file in group.files if not os.path.basename(file.path).startswith(".")}
    if group.kind in ENTRIES:
        found = audit([Location(path, group.kind, group.name) for path in paths], [])
    elif group.kind is Kind.KERNEL:
        found = audit([], [CodeFile(path, group.root, Kind.KERNEL) for path in paths])
    else:
        is_code = group.kind in (Kind.NATIVE_CODE, Kind.HEADER)
        paths = {path for path in paths if is_code and path.endswith((".so", ".o", ".gch"))}
        found = audit([], [CodeFile(path, group.root, Kind.NATIVE_CODE) for path in paths])
    refused = {each.path: f"{each.evidence} [{each.reason}]" for each in found.refused}
    return [
        {
            "path": file.path,
            "bytes": file.size,
            "sha256": _digest(file),
            "verified": file.path in paths and file.path not in refused,
            "refused": refused.get(file.path),
        }
        for file in group.files
    ]


def _digest(file: File) -> str | None:
    """The SHA-256 in hex; None for what is not a regular file or cannot be read."""
    try:
        return opening.digest_regular(file.path, opening.check_regular, flags=os.O_NOFOLLOW).hex()
    except (OSError, opening.UnusableEntry):
        return None


def _history(item: Item) -> Iterator[dict[str, str]]:
    """What was quarantined from the item's place and is still in quarantine."""
    for each in quarantined.listed([item.directory]):
        folder, name = os.path.split(each.origin)
        if os.path.basename(folder) == item.group.name or name.startswith(f"{item.group.name}."):
            yield {"item": each.name, "time": each.time, "reason": each.reason}


def _text(report: dict[str, Any]) -> Iterator[str | Table]:
    for label, text in _lines(report):
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
    yield Table(_HEADINGS, rows)
    for file in report["contents"]:
        if file["refused"]:
            yield f"refused {file['path']}: {file['refused']}"
    for each in report["quarantined"]:
        yield f"in quarantine: {each['item']}, {each['reason']}, {each['time']}"


_HEADINGS = (Heading("file", folds=True), Heading("size", right=True), Heading("now"), Heading("sha256", folds=True))


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", report["name"]
    yield "kind", KINDS[report["kind"]].plural
    yield "key", report["key"]
    yield "directory", report["directory"]
    yield "made", report["made"]
    yield "last used", report["used"]
    yield "size", f"{write_size(report['bytes'])} in {report['files']} files, records included"
    yield "gpu", report["gpu"]
    yield "built with", ", ".join(f"{name} {value}" for name, value in report["provenance"].items() if name in _BUILD)
    yield "options", ", ".join(f"{name} {value}" for name, value in report["options"].items())
    yield "sealed", ", ".join(f"{count} {state}" for state, count in sorted(report["states"].items()))
    for signer in report["signers"]:
        trusted = "trusted here" if signer["trusted"] else "not trusted here"
        yield "signer", " ".join(filter(None, (signer["id"], signer["name"], f"({trusted})")))
    for name, value in report["provenance"].items():
        if name not in (*_BUILD, "gpu", omitted.FIELD):
            label, text = _FIELDS.get(name, (name, "{}"))
            yield label, text.format(value) if value else ""
    for refuses, text in omitted.described(report["provenance"]):
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
