"""``safecache help``: the reference, one page of Markdown for each topic in safecache/guide."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from safecache.cli import EXIT_USAGE
from safecache.errors import printable

__all__ = ["add", "run"]

_GUIDE = files("safecache") / "guide"


def _names() -> list[str]:
    return sorted(page.name.removesuffix(".md") for page in _GUIDE.iterdir() if page.name.endswith(".md"))


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the page")


def run(arguments: argparse.Namespace) -> int:
    """Print a page, or the list of pages, and return the exit code. Without a terminal, the page is its source."""
    console, topic = Console(), arguments.topic
    if topic is not None and topic not in _names():
        print(f"safecache help: there is no page {printable(topic)}, but {', '.join(_names())}", file=sys.stderr)
        return EXIT_USAGE
    if topic is None:
        table = Table("topic", "about", box=None)
        for name in _names():
            table.add_row(name, _page(name).partition("\n")[0].removeprefix("# "))
        console.print(table)
    elif console.is_terminal:
        console.print(Markdown(_page(topic)))
    else:
        print(_page(topic), end="")
    return 0


def _page(name: str) -> str:
    return (_GUIDE / f"{name}.md").read_text(encoding="utf-8")
