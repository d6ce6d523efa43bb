"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from safecache.settings import units

__all__ = ["DIRECTORY_HELP", "add_directories", "add_json", "add_places", "number", "of"]

DIRECTORY_HELP = "a cache directory; by default those that torch and Triton use under this environment"


def add_json(parser: argparse.ArgumentParser) -> argparse.Action:
    """Add ``--json``."""
    return parser.add_argument("--json", action="store_true", help="print JSON")


def add_directories(parser: argparse.ArgumentParser) -> None:
    """Add the directories that a command works on, as positional arguments."""
    parser.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)


def add_places(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add ``--in`` and ``--json``. ``again``: for an action's parser, which keeps values given before the action."""
    directories = parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
    as_json = add_json(parser)
    if again:
        directories.default = as_json.default = argparse.SUPPRESS


def of(parse: Callable[[str], int], allowed: str) -> Callable[[str], int]:
    """An argparse type that calls ``parse``; ``allowed``: the valid values, for the error message."""

    def checked(text: str) -> int:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None

    return checked


number = of(units.parse_count, "a number from 1")
