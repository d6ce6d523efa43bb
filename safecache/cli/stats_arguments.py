"""The arguments of ``safecache stats``."""

from __future__ import annotations

import argparse

from safecache.cli.listing_arguments import DIRECTORY_HELP
from safecache.history.run_summary import ALL, LAST

__all__ = ["COMMANDS", "add", "add_run", "run"]

COMMANDS = ("stats",)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    stats = commands.add_parser("stats", help="say what the processes of a run have looked up, and why it was missed")
    add_run(stats)
    stats.add_argument("--json", action="store_true", help="print JSON")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add which run it is to be, and where."""
    parser.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)
    choice = f"the run: its id, {LAST} (the default) for the latest, or {ALL}"
    parser.add_argument("--run", default=LAST, metavar="ID", help=choice)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises OSError."""
    from safecache.cli import stats

    return stats.run(arguments)
