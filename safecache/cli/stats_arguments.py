"""The arguments of ``safecache stats``."""

from __future__ import annotations

import argparse

from safecache.cli.listing_arguments import DIRECTORY_HELP
from safecache.run_summary import ALL, LAST

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("stats",)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    stats = commands.add_parser("stats", help="say what the processes of a run have looked up, and why it was missed")
    stats.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)
    choice = f"the run: its id, {LAST} (the default) for the latest, or {ALL}"
    stats.add_argument("--run", default=LAST, metavar="ID", help=choice)
    stats.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises OSError."""
    from safecache.cli import stats

    return stats.run(arguments)
