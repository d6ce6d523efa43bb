"""The arguments of ``safecache report``."""

from __future__ import annotations

import argparse

from safecache.cli import stats_arguments

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("report",)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    report = commands.add_parser("report", help="write a page of HTML about a run: its lookups, misses and caches")
    report.add_argument(
        "-o", "--output", default="safecache-report.html", metavar="FILE", help="the page (default %(default)s)"
    )
    stats_arguments.add_run(report)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises OSError."""
    from safecache.cli import report

    return report.run(arguments)
