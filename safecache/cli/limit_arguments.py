"""The arguments of the commands about the size of caches."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from safecache.cli.listing_arguments import DIRECTORY_HELP
from safecache.settings import units

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("gc", "du", "clean")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of these commands."""
    gc = commands.add_parser("gc", help="bring caches within their limits: the least recently used goes first")
    of_size, of_age = _of(units.parse_size, units.SIZES), _of(units.parse_age, units.AGES)
    gc.add_argument("--max-bytes", type=of_size, metavar="10G", help="in place of SAFECACHE_MAX_BYTES")
    gc.add_argument(
        "--max-files", type=_of(units.parse_count, "a number"), metavar="N", help="in place of SAFECACHE_MAX_FILES"
    )
    gc.add_argument("--max-age", type=of_age, metavar="30d", help="in place of SAFECACHE_MAX_AGE")
    gc.add_argument("--quiet", action="store_true", help="print nothing, and let others run first")
    du = commands.add_parser("du", help="say what caches hold, by kind, and when it was used")
    clean = commands.add_parser("clean", help="remove all of a cache that no running job uses")
    clean.add_argument("--force", action="store_true", help="also what running jobs use, and what was used just now")
    for parser in (gc, clean):
        parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    for parser in (gc, du, clean):
        parser.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)
        parser.add_argument("--json", action="store_true", help="print JSON")


def _of(parse: Callable[[str], int], allowed: str) -> Callable[[str], int]:
    def checked(text: str) -> int:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None

    return checked


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands and return its exit code. Raises SafecacheError or OSError."""
    code: int = importlib.import_module(f"safecache.cli.{arguments.command}").run(arguments)
    return code
