"""``safecache diff A B``: what differs between two packs or caches."""

from __future__ import annotations

import argparse

from safecache.cli import EXIT_FINDINGS
from safecache.cli.arguments import add_json, require_zstandard
from safecache.cli.view import View
from safecache.settings.settings import PACK
from safecache.upkeep import packing

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    for name in ("first", "second"):
        parser.add_argument(name, metavar="AB"[name == "second"], help=f"a cache directory, or a pack (NAME{PACK})")
    add_json(parser)


def run(arguments: argparse.Namespace) -> View:
    """Tell the differences; 1 if there are any. Raises SafecacheError or OSError."""
    require_zstandard()
    lines, rows = [], []
    for name, first, second, both in packing.compared(arguments.first, arguments.second):
        rows.append({"name": name, "a": first, "b": second, "differ": both})
        words = (("only in A", first), ("only in B", second), ("differ", both))
        said = "; ".join(f"{word}: {', '.join(names)}" for word, names in words if names)
        lines.append(f"{name}: {said}")
    data = {"a": arguments.first, "b": arguments.second, "differences": rows}
    return View(
        data, lines or [f"{arguments.first} and {arguments.second} hold the same."], EXIT_FINDINGS if rows else 0
    )
