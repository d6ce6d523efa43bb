"""``safecache help``: the reference, one page of Markdown for each topic in safecache/guide."""

from __future__ import annotations

import argparse
from importlib.resources import files

from rich.console import Console
from rich.markdown import Markdown

from safecache.cli import UsageError
from safecache.cli.view import Heading, Table, View

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the page")


def run(arguments: argparse.Namespace) -> View:
    """Show a page, or the list of pages. Without a terminal, the page is its source."""
    guide = (files("safecache") / "guide").iterdir()
    pages = {page.name.removesuffix(".md"): page for page in guide if page.name.endswith(".md")}
    if arguments.topic is None:
        titles = {name: page.read_text(encoding="utf-8").partition("\n")[0] for name, page in sorted(pages.items())}
        rows = [(name, title.removeprefix("# ")) for name, title in titles.items()]
        return View(None, [Table([Heading("topic"), Heading("about", folds=True)], rows)])
    if arguments.topic not in pages:
        raise UsageError(f"there is no page {arguments.topic}, but {', '.join(sorted(pages))}")
    text, console = pages[arguments.topic].read_text(encoding="utf-8"), Console()
    if console.is_terminal:
        console.print(Markdown(text))
        return View(None, ())
    return View(None, text.splitlines())
