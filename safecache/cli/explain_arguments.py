"""The arguments of ``safecache explain``."""

from __future__ import annotations

import argparse

from safecache.cli.listing_arguments import DIRECTORY_HELP

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("explain",)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    explain = commands.add_parser("explain", help="say why lookups missed: which parts of which key differ")
    explain.add_argument(
        "what", nargs="?", metavar="NAME|KEY", help="of a function or kernel, or of a key: a part will do"
    )
    explain.add_argument("--dir", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
    explain.add_argument("--run", metavar="ID", help="the misses of this run alone, as the journal names it")
    explain.add_argument(
        "--last", type=int, default=20, metavar="N", help="how many misses, the last ones (default 20)"
    )
    explain.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code. Raises OSError."""
    from safecache.cli import explain

    return explain.run(arguments)
