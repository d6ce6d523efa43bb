"""Holds what commands share: the arguments of several, and what each prints.

That is JSON for a program, or lines and tables for a person. In a table keys and numbers are never cut, and without a
terminal every row is one line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from safecache.errors import ConfigError, SafecacheError, make_printable
from safecache.places import layout
from safecache.remote import client
from safecache.remote.client import Client, Unavailable
from safecache.settings import config, settings, units
from safecache.tiers import levels
from safecache.upkeep import copies
from safecache.upkeep.copies import Held

__all__ = [
    "DIRECTORY_HELP",
    "Complaint",
    "Heading",
    "Table",
    "View",
    "add_directories",
    "add_json",
    "add_places",
    "add_remote",
    "find_caches",
    "list_remote",
    "make_type",
    "number",
    "parse_remote_url",
    "require_zstandard",
    "show_progress",
]

_LEAST_FOLDED = 8

DIRECTORY_HELP = "cache directory; by default those that torch and Triton use in this environment"


class Heading(NamedTuple):
    """A column's heading. On a narrow terminal a column that ``folds`` is wrapped; nothing is cut off."""

    name: str
    folds: bool = False
    right: bool = False


class Table(NamedTuple):
    """Rows below headings. ``colours``: by the text of a cell, that of its row on a terminal.

    Cells are untrusted: neither terminal sequences nor markup in them take effect. No table of rich's, which takes a
    millisecond for each row.
    """

    headings: Sequence[Heading]
    rows: Iterable[Sequence[str]]
    colours: Mapping[str, str] = {}

    def print(self) -> None:
        """Print it on stdout."""
        console = Console()
        names = [heading.name for heading in self.headings]
        rows = [[make_printable(cell) for cell in row] for row in self.rows]
        widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        if console.is_terminal:
            widths = _fit_widths(self.headings, widths, console.width)
        for line in _format_lines(self.headings, names, widths):
            console.print(Text(line, style="bold"), soft_wrap=True)
        for row in rows:
            colour = next((self.colours[cell] for cell in row if cell in self.colours), "")
            for line in _format_lines(self.headings, row, widths):
                if colour and console.is_terminal:
                    console.print(Text(line, style=colour), soft_wrap=True)
                else:
                    print(line)


class Complaint(str):
    """A line that goes to stderr, in its place among the others."""


class View(NamedTuple):
    """Result of a command: ``data`` for ``--json``, ``text`` for a person, and its exit code.

    ``text`` is iterated only where it is printed. Lines are untrusted, as cells are. Without ``data`` there is no JSON.
    """

    data: object
    text: Iterable[str | Table]
    code: int = 0

    def show(self, *, as_json: bool) -> int:
        """Print one of the two, and return the exit code."""
        if as_json and self.data is not None:
            print(json.dumps(self.data))
            return self.code
        for part in self.text:
            if isinstance(part, Table):
                part.print()
            elif isinstance(part, Complaint):
                sys.stdout.flush()
                print(make_printable(part), file=sys.stderr)
            else:
                print(make_printable(part))
        return self.code


@contextmanager
def show_progress(*, total: int | None = None, described: str = "") -> Iterator[tuple[Progress, TaskID]]:
    """Context of a bar on stderr, or of a spinner without a ``total``; nothing is shown without a terminal."""
    console = Console(stderr=True)
    of_total = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) if total is not None else (SpinnerColumn(),)
    columns = (TextColumn("{task.description}"), *of_total)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(described, total=total)


def _fit_widths(headings: Sequence[Heading], widths: Sequence[int], width: int) -> list[int]:
    """Column widths that fit into ``width``: the widest folding column shrinks first, down to a readable minimum."""
    fitted = list(widths)
    folding = [number for number, heading in enumerate(headings) if heading.folds]
    while folding and sum(fitted) + len(fitted) - 1 > width:
        widest = max(folding, key=lambda number: fitted[number])
        if fitted[widest] <= _LEAST_FOLDED:
            break
        fitted[widest] -= 1
    return fitted


def _format_lines(headings: Sequence[Heading], row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    folded = [list(_chop_cell(cell, width)) for cell, width in zip(row, widths, strict=True)]
    for parts in itertools.zip_longest(*folded, fillvalue=""):
        padded = (
            " " * (width - cell_len(part)) + part if heading.right else set_cell_size(part, width)
            for heading, part, width in zip(headings, parts, widths, strict=True)
        )
        yield " ".join(padded).rstrip()


def _chop_cell(cell: str, width: int) -> Iterator[str]:
    """Pieces of at most that width, cut between words if possible; each has at least one letter, which may be wider."""
    while cell_len(cell) > width:
        end = next((end for end in range(width, 1, -1) if cell_len(cell[:end]) <= width), 1)
        space = cell.rfind(" ", 1, end + 1)
        end = space if space > 0 else end
        yield cell[:end]
        cell = cell[end:].removeprefix(" ")
    yield cell


def add_json(parser: argparse._ActionsContainer) -> argparse.Action:
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


def add_remote(parser: argparse.ArgumentParser, *, instead: str) -> None:
    """Add ``--remote``; ``instead``: what the command does with it in place of what it does without."""
    text = f"{instead}; default: that of SAFECACHE_TIERS"
    parser.add_argument("--remote", nargs="?", const="", type=parse_remote_url, metavar="URL", help=text)


def parse_remote_url(text: str, *others: str) -> str:
    """An argparse type: the URL of a remote, or nothing. ``others``: further schemes, for the error message."""
    try:
        if text:
            settings.parse_remote(text)
    except ValueError:
        # What it is may have a password in it.
        allowed = ", ".join((*settings.REMOTES, *others))
        raise argparse.ArgumentTypeError(f"not a URL of {allowed}, or one with a bad parameter") from None
    return text


def list_remote(arguments: argparse.Namespace) -> tuple[Client, list[Held]]:
    """The remote that is named, or else that of the settings, and what it holds.

    Raises ConfigError where there is none, and SafecacheError for one that cannot be listed.
    """
    found = client.get_background(arguments.remote or None)
    if found is None:
        raise ConfigError("there is no remote cache: name one in SAFECACHE_TIERS, or give --remote URL")
    try:
        return found, copies.list_remote(found)
    except Unavailable:
        raise SafecacheError(f"{found.shown} cannot be listed") from None


def find_caches(arguments: argparse.Namespace) -> list[str]:
    """The directories that were named, or else those that torch and Triton would use; and vLLM's below them."""
    environ, named = config.copy_environment(), arguments.directories
    of_vllm = (cache for place in named or [layout.vllm_cache_dir(environ)] for cache in layout.find_vllm_caches(place))
    return [*(named or levels.list_caches(environ)), *of_vllm]


def require_zstandard() -> None:
    """Raise ConfigError, with the line that installs it, where packs cannot be read."""
    if not config.is_installed("zstandard"):
        raise ConfigError(f"packs need zstandard: {config.install_line('pack')}")


def make_type(parse: Callable[[str], int], allowed: str) -> Callable[[str], int]:
    """An argparse type that calls ``parse``; ``allowed``: the valid values, for the error message."""

    def check_text(text: str) -> int:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None

    return check_text


number = make_type(units.parse_count, "a number from 1")
