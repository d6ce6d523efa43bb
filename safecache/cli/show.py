"""``safecache show``: everything about one kernel, graph or library, and whether a load would accept it now."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from safecache.cli import ls, tables
from safecache.cli.arguments import add_places
from safecache.cli.ls import Row
from safecache.cli.tables import Heading
from safecache.errors import printable
from safecache.files import opening
from safecache.omitted import fingerprints
from safecache.places.layout import CodeFile, Location
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.signing import keyring
from safecache.store.groups import KINDS, File, Group
from safecache.upkeep import catalogue, quarantined
from safecache.upkeep.audit import Audit, audit
from safecache.upkeep.catalogue import Catalogue, Item

__all__ = ["add", "run"]

_SHOWN = {KINDS[word] for word in (*ls.USUAL, "crash", "known-bad")}


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "name", metavar="NAME|KEY|PATH", help="of a kernel or function; a key, or the beginning of it; or a file of it"
    )
    add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it; 1 if none or several match, or a load would refuse a file. Raises SafecacheError or OSError."""
    found = catalogue.take(ls.directories_of(arguments), _SHOWN)
    rows = _matching(arguments.name, found)
    if not rows:
        print(f"safecache show: nothing is called {printable(arguments.name)} there", file=sys.stderr)
        return 1
    if len({row.item.group.name for row in rows}) > 1:
        return _tell_several(rows, found, as_json=arguments.json)
    reports = [_report(row) for row in rows]
    if arguments.json:
        print(json.dumps({"entries": reports}))
    else:
        for report in reports:
            _print(report)
    return int(any(file["refused"] for report in reports for file in report["contents"]))


def _tell_several(rows: list[Row], found: Catalogue, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"matches": [ls.report(row) for row in rows]}))
    else:
        ls.print_rows(rows, found)
        print(f"safecache show: {len(rows)} are called so: give the key of one", file=sys.stderr)
    return 1


def _matching(text: str, found: Catalogue) -> list[Row]:
    """The matches by path, by key or its beginning, or else by name, which requires reading all files."""
    by_path = _containing(os.path.abspath(text)) if os.sep in text else None
    items = [item for item in found.items if by_path is not None and by_path(item.group)]
    items = items or [item for item in found.items if item.group.name == text]
    items = items or [item for item in found.items if text and item.group.name.startswith(text)]
    if items or by_path is not None:
        return ls.describe(items, found)
    return [row for row in ls.describe(found.items, found) if text in row.description.names]


def _containing(path: str) -> Callable[[Group], bool]:
    places = {path, os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))}

    def contains(group: Group) -> bool:
        return bool(places & {*group.paths, *(file.path for file in group.all_files)})

    return contains


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
    """Its files, without records and lock, with what a load would say of those that it looks at."""
    refused = {each.path: f"{each.evidence} [{each.reason}]" for each in _audit(group).refused}
    judged = _judged(group)
    return [
        {
            "path": file.path,
            "bytes": file.size,
            "sha256": _digest(file),
            "verified": file.path in judged and file.path not in refused,
            "refused": refused.get(file.path),
        }
        for file in group.files
    ]


def _audit(group: Group) -> Audit:
    if group.kind in ENTRIES:
        return audit([Location(path, group.kind, group.name) for path in _judged(group)], [])
    kind = Kind.KERNEL if group.kind is Kind.KERNEL else Kind.NATIVE_CODE
    return audit([], [CodeFile(path, group.root, kind) for path in _judged(group)])


def _judged(group: Group) -> set[str]:
    """The paths of the files that have a seal or a record."""
    paths = {file.path for file in group.files if not os.path.basename(file.path).startswith(".")}
    if group.kind in (*ENTRIES, Kind.KERNEL):
        return paths
    is_code = group.kind in (Kind.NATIVE_CODE, Kind.HEADER)
    return {path for path in paths if is_code and path.endswith((".so", ".o", ".gch"))}


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


def _print(report: dict[str, Any]) -> None:
    lines = [(label, text) for label, text in _lines(report) if text]
    for label, text in lines:
        print(printable(f"{label + ':':<13}{text}"))
    rows = [
        (
            os.path.basename(file["path"]),
            write_size(file["bytes"]),
            "refused" if file["refused"] else "verified" if file["verified"] else "-",
            file["sha256"] or "-",
        )
        for file in report["contents"]
    ]
    tables.show(_HEADINGS, rows)
    for file in report["contents"]:
        if file["refused"]:
            print(printable(f"refused {file['path']}: {file['refused']}"))
    for each in report["quarantined"]:
        print(printable(f"in quarantine: {each['item']}, {each['reason']}, {each['time']}"))


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
        if name not in (*_BUILD, "gpu", fingerprints.FIELD):
            label, text = _FIELDS.get(name, (name, "{}"))
            yield label, text.format(value) if value else ""
    for refuses, text in fingerprints.described(report["provenance"]):
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
