"""``safecache diff A B``: what differs between two packs or caches."""

from __future__ import annotations

import argparse
import json

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import add_json, require_zstandard
from safecache.errors import printable
from safecache.settings.settings import PACK
from safecache.upkeep import packing

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    for name in ("first", "second"):
        parser.add_argument(name, metavar="AB"[name == "second"], help=f"a cache directory, or a pack (NAME{PACK})")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; 1 if there are any. Raises SafecacheError or OSError."""
    require_zstandard()
    found = list(packing.compared(arguments.first, arguments.second))
    if arguments.json:
        rows = [{"name": each.name, "a": each.first, "b": each.second, "differ": each.both} for each in found]
        print(json.dumps({"a": arguments.first, "b": arguments.second, "differences": rows}))
    for each in [] if arguments.json else found:
        print(printable(f"{each.name}: {_said(each)}"))
    if not found and not arguments.json:
        print(f"{arguments.first} and {arguments.second} hold the same.")
    return EXIT_FINDINGS if found else 0


def _said(difference: packing.Difference) -> str:
    words = (("only in A", difference.first), ("only in B", difference.second), ("differ", difference.both))
    return "; ".join(f"{word}: {', '.join(names)}" for word, names in words if names)
