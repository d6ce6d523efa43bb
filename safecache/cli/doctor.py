"""``safecache doctor``: what prevents caches from working on this machine, and why a shared object does not load."""

from __future__ import annotations

import argparse
import json
from collections import Counter

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Column, Table
from rich.text import Text

from safecache.cli import preflight
from safecache.cli.arguments import add_json
from safecache.doctor import load_check
from safecache.doctor.examination import examine
from safecache.doctor.finding import SEVERITIES, Finding, worst
from safecache.errors import printable

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
        return preflight.run(arguments)
    if arguments.load is not None:
        return _show_load(arguments.load, strict=arguments.strict, as_json=arguments.json)
    return _show(import_torch=not arguments.no_import, strict=arguments.strict, as_json=arguments.json)


def _show(*, import_torch: bool, strict: bool, as_json: bool) -> int:
    """Print the findings of all checks, the worst first; 1 if one is an error, or with ``strict`` a warning."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task("looking around")
        findings = examine(import_torch=import_torch)
    if as_json:
        print(json.dumps({"findings": [finding._asdict() for finding in findings], "worst": worst(findings)}))
    else:
        _print(findings)
        counts = Counter(finding.severity for finding in findings)
        print(", ".join(f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity]))
    return _code(findings, strict=strict)


def _show_load(path: str, *, strict: bool, as_json: bool) -> int:
    """As _show(), for why the shared object at ``path`` does not load."""
    findings = load_check.check(path)
    if as_json:
        print(json.dumps({"file": path, "findings": [finding._asdict() for finding in findings]}))
    else:
        _print(findings)
    return _code(findings, strict=strict)


def _code(findings: list[Finding], *, strict: bool) -> int:
    return int(SEVERITIES.index(worst(findings)) >= SEVERITIES.index("warning" if strict else "error"))


def _print(findings: list[Finding]) -> None:
    table = Table("code", Column("evidence and remedy", overflow="fold"))
    for code, severity, evidence, remedy in findings:
        text = Text(printable(evidence))
        if remedy:
            text.append(f"\n{printable(remedy)}", "bold")
        table.add_row(Text(f"{code}\n{severity}", _COLOURS[severity]), text)
    Console().print(table)
