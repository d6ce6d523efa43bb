"""What a command prints: JSON for a program, or lines and tables for a person.

In a table keys and numbers are never cut, and without a terminal every row is one line.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from safecache.errors import printable

__all__ = ["Complaint", "Heading", "Table", "View", "progress"]

_LEAST_FOLDED = 8


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
        rows = [[printable(cell) for cell in row] for row in self.rows]
        widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        if console.is_terminal:
            widths = _fit(self.headings, widths, console.width)
        for line in _lines(self.headings, names, widths):
            console.print(Text(line, style="bold"), soft_wrap=True)
        for row in rows:
            colour = next((self.colours[cell] for cell in row if cell in self.colours), "")
            for line in _lines(self.headings, row, widths):
                if colour and console.is_terminal:
                    console.print(Text(line, style=colour), soft_wrap=True)
                else:
                    print(line)


class Complaint(str):
    """A line that goes to stderr, in its place among the others."""


class View(NamedTuple):
    """What a command has found: ``data`` for ``--json``, ``text`` for a person, and its exit code.

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
                print(printable(part), file=sys.stderr)
            else:
                print(printable(part))
        return self.code


@contextmanager
def progress(*, total: int | None = None, described: str = "") -> Iterator[tuple[Progress, TaskID]]:
    """Context of a bar on stderr, or of a spinner without a ``total``; nothing is shown without a terminal."""
    console = Console(stderr=True)
    of_total = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) if total is not None else (SpinnerColumn(),)
    columns = (TextColumn("{task.description}"), *of_total)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(described, total=total)


def _fit(headings: Sequence[Heading], widths: Sequence[int], width: int) -> list[int]:
    """Column widths that fit into ``width``: the widest folding column shrinks first, down to a readable minimum."""
    fitted = list(widths)
    folding = [number for number, heading in enumerate(headings) if heading.folds]
    while folding and sum(fitted) + len(fitted) - 1 > width:
        widest = max(folding, key=lambda number: fitted[number])
        if fitted[widest] <= _LEAST_FOLDED:
            break
        fitted[widest] -= 1
    return fitted


def _lines(headings: Sequence[Heading], row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    folded = [list(_chop(cell, width)) for cell, width in zip(row, widths, strict=True)]
    for parts in itertools.zip_longest(*folded, fillvalue=""):
        padded = (
            " " * (width - cell_len(part)) + part if heading.right else set_cell_size(part, width)
            for heading, part, width in zip(headings, parts, widths, strict=True)
        )
        yield " ".join(padded).rstrip()


def _chop(cell: str, width: int) -> Iterator[str]:
    """Pieces of at most that width, cut between words if possible; each has at least one letter, which may be wider."""
    while cell_len(cell) > width:
        end = next((end for end in range(width, 1, -1) if cell_len(cell[:end]) <= width), 1)
        space = cell.rfind(" ", 1, end + 1)
        end = space if space > 0 else end
        yield cell[:end]
        cell = cell[end:].removeprefix(" ")
    yield cell
