"""Reading files in several threads: opening waits for the disk or the network, and hashing releases the GIL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["READERS", "each"]

READERS = 4

T = TypeVar("T")
R = TypeVar("R")


def each(function: Callable[[T], R], items: Sequence[T], readers: int = READERS) -> Iterator[R]:
    """What ``function`` returns for each item, in order. Raises what it raises, and then skips the remaining items."""
    with ThreadPoolExecutor(readers) as pool:
        yield from pool.map(function, items)
