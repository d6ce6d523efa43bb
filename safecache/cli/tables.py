"""Tables for people: whole keys and numbers at any width, and every row in one line where no terminal reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from safecache.cli.terminal import printable

__all__ = ["Heading", "show"]

_LEAST_FOLDED = 8


class Heading(NamedTuple):
    """Of a column. What ``folds`` goes on in the next line where the terminal is narrow; nothing is left out."""

    name: str
    folds: bool = False
    right: bool = False


def show(headings: Sequence[Heading], rows: Iterable[Sequence[str]]) -> None:
    """Print the table. What is in the cells may be of anybody: no terminal obeys it, and it is no markup."""
    cells = [[printable(cell) for cell in row] for row in rows]
    table = Table(*map(_column, headings), box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console()
    widths = [max(map(cell_len, column)) for column in zip([heading.name for heading in headings], *cells, strict=True)]
    if console.is_terminal:
        widths = [
            min(width, _LEAST_FOLDED) if heading.folds else width
            for heading, width in zip(headings, widths, strict=True)
        ]
        console.width = max(console.width, sum(widths) + len(widths))
    else:
        console.width = sum(widths) + len(widths)
    console.print(table)


def _column(heading: Heading) -> Column:
    return Column(
        heading.name, justify="right" if heading.right else "left", no_wrap=not heading.folds, overflow="fold"
    )
