"""``safecache doctor --load FILE``: why a shared object does not load."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from safecache import load_check
from safecache.cli.terminal import printable

__all__ = ["show"]


def show(path: str, *, as_json: bool) -> int:
    """Print the findings; 1 if one of them is an error."""
    findings = load_check.check(path)
    if as_json:
        print(json.dumps({"file": path, "findings": [finding._asdict() for finding in findings]}))
    else:
        table = Table("code", Column("evidence", overflow="fold"), Column("remedy", overflow="fold"))
        for code, severity, evidence, remedy in findings:
            colour = "green" if severity == "ok" else "red"
            table.add_row(Text(code, colour), Text(printable(evidence)), Text(printable(remedy)))
        Console().print(table)
    return int(any(finding.severity == "error" for finding in findings))
