"""Tables for people: keys and numbers are never cut, and without a terminal every row is one line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from safecache.errors import printable

__all__ = ["Heading", "show"]

_LEAST_FOLDED = 8


class Heading(NamedTuple):
    """A column's heading. On a narrow terminal a column that ``folds`` is wrapped; nothing is cut off."""

    name: str
    folds: bool = False
    right: bool = False


def show(headings: Sequence[Heading], rows: Iterable[Sequence[str]]) -> None:
    """Print the table. Cells are untrusted: neither terminal sequences nor markup in them take effect.

    Not a table of rich's, which takes a millisecond for each row.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    console = Console()
    longest = [
        max(map(cell_len, column)) for column in zip([heading.name for heading in headings], *cells, strict=True)
    ]
    widths = _fitted(headings, longest, console.width) if console.is_terminal else longest
    for line in _lines(headings, [heading.name for heading in headings], widths):
        console.print(Text(line, style="bold"), soft_wrap=True)
    for row in cells:
        for line in _lines(headings, row, widths):
            print(line)


def _fitted(headings: Sequence[Heading], widths: Sequence[int], width: int) -> list[int]:
    """Column widths that fit into ``width``: the widest folding column shrinks first, down to a readable minimum."""
    fitted = list(widths)
    folding = [number for number, heading in enumerate(headings) if heading.folds]
    while sum(fitted) + len(fitted) - 1 > width:
        widest = max(folding, key=lambda number: fitted[number])
        if fitted[widest] <= _LEAST_FOLDED:
            break
        fitted[widest] -= 1
    return fitted


def _lines(headings: Sequence[Heading], row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    folded = [list(_chopped(cell, width)) for cell, width in zip(row, widths, strict=True)]
    for parts in itertools.zip_longest(*folded, fillvalue=""):
        padded = (
            " " * (width - cell_len(part)) + part if heading.right else set_cell_size(part, width)
            for heading, part, width in zip(headings, parts, widths, strict=True)
        )
        yield " ".join(padded).rstrip()


def _chopped(cell: str, width: int) -> Iterator[str]:
    """Pieces of at most that width, cut between words if possible; each has at least one letter, which may be wider."""
    while cell_len(cell) > width:
        end = next((end for end in range(width, 1, -1) if cell_len(cell[:end]) <= width), 1)
        space = cell.rfind(" ", 1, end + 1)
        end = space if space > 0 else end
        yield cell[:end]
        cell = cell[end:].removeprefix(" ")
    yield cell
