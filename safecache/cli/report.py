"""``safecache report``: a page of HTML about a run."""

from __future__ import annotations

import argparse
import os

from safecache.cli import ls, stats
from safecache.cli.html import facts, page
from safecache.store import entry_files

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument(
        "-o", "--output", default="safecache-report.html", metavar="FILE", help="the page (default %(default)s)"
    )
    stats.add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the page; 1 if there is no journal of such a run. Raises OSError."""
    directories = ls.directories_of(arguments)
    found = facts.gather(directories, arguments.run)
    if found is None:
        return stats.say_there_is_none(arguments, directories)
    path = os.path.abspath(arguments.output)
    entry_files.replace(path, page.render(found).encode())
    print(path)
    return 0
