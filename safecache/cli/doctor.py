"""``safecache doctor``: what prevents caches from working on this machine, and why a shared object does not load."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table
from rich.text import Text

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import add_json, require_zstandard
from safecache.doctor import load_check
from safecache.doctor.examination import examine
from safecache.doctor.finding import SEVERITIES, Finding, worst
from safecache.errors import PackRefusedError, printable
from safecache.packs import archive
from safecache.settings import config
from safecache.upkeep import preflight, warming
from safecache.upkeep.preflight import Difference

__all__ = ["add", "run"]

_COLOURS = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "red"}


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--load", metavar="FILE", help="instead, say why a shared object does not load, without running it"
    )
    what.add_argument("--no-import", action="store_true", help="do not import torch: leave out what the hooks do")
    text = "instead, say whether these packs or cache directories, which were filled elsewhere, can be used here"
    what.add_argument("--for", dest="sources", nargs="*", metavar="PACK|DIR", help=text)
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too, not for errors alone")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if arguments.sources is not None:
        return _show_baked(arguments)
    file = arguments.load
    console, columns = Console(stderr=True), (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=bool(file) or not console.is_terminal) as progress:
        progress.add_task("looking around")
        findings = load_check.check(file) if file else examine(import_torch=not arguments.no_import)
    return _show(findings, file, strict=arguments.strict, as_json=arguments.json)


def _show(findings: list[Finding], file: str | None, *, strict: bool, as_json: bool) -> int:
    """Print the findings, of all checks or about a ``file``; 1 if one is an error, or with ``strict`` a warning."""
    if as_json:
        about = {"worst": worst(findings)} if file is None else {"file": file}
        print(json.dumps({**about, "findings": [finding._asdict() for finding in findings]}))
    else:
        _print(findings)
        counts = Counter(finding.severity for finding in findings)
        if file is None:
            print(", ".join(f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity]))
    return int(SEVERITIES.index(worst(findings)) >= SEVERITIES.index("warning" if strict else "error"))


def _show_baked(arguments: argparse.Namespace) -> int:
    """Print how a cache from elsewhere differs; 1 if anything misses by that, or nothing lies there."""
    groups, found = 0, list[Difference]()
    packs = [source for source in arguments.sources if config.is_pack(source)]
    directories = [source for source in arguments.sources if source not in packs]
    for pack in packs:
        count, differences = _of_pack(pack)
        groups, found = groups + count, [*found, *differences]
    if directories or not packs:
        count, differences = _of_directories(directories or warming.places())
        groups, found = groups + count, [*found, *differences]
    misses = not groups or any(each.misses for each in found)
    if arguments.json:
        stated = [each._asdict() | {"text": str(each)} for each in found]
        print(json.dumps({"groups": groups, "misses": misses, "differences": stated}))
    else:
        _print_differences(groups, found)
    return EXIT_FINDINGS if misses else 0


def _of_pack(path: str) -> tuple[int, list[Difference]]:
    """How many groups it has, and what differs; nothing that it says counts before its seal has been verified."""
    require_zstandard()
    try:
        manifest = archive.opened(path).manifest
    except PackRefusedError as error:
        return 1, [Difference("the pack", "sealed there", str(error), "A server would not use it either.")]
    if not manifest.get("baked"):
        return len(manifest["groups"]), [preflight.UNRECORDED]
    return len(manifest["groups"]), preflight.differences(manifest["baked"], manifest.get("made_with"))


def _of_directories(directories: list[str]) -> tuple[int, list[Difference]]:
    for directory in directories:
        os.scandir(directory).close()
    baked = preflight.collected(cache for directory in directories for cache in preflight.within(directory))
    return baked["groups"], preflight.differences(baked) if baked["groups"] else []


def _print_differences(groups: int, found: list[Difference]) -> None:
    for each in found:
        print(printable(f"{'misses' if each.misses else 'may miss'}: {each}"))
        print(printable(f"  {each.remedy}"))
    if not groups:
        print("nothing that is compiled lies there")
    elif not any(each.misses for each in found):
        print("every entry can hit here as far as can be told without compiling")


def _print(findings: list[Finding]) -> None:
    table = Table("code", Column("evidence and remedy", overflow="fold"))
    for code, severity, evidence, remedy in findings:
        text = Text(printable(evidence))
        if remedy:
            text.append(f"\n{printable(remedy)}", "bold")
        table.add_row(Text(f"{code}\n{severity}", _COLOURS[severity]), text)
    Console().print(table)
