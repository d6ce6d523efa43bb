"""Files read by several threads at once: opening waits for the disk or the network, and hashing holds no lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["READERS", "each"]

READERS = 4

T = TypeVar("T")
R = TypeVar("R")


def each(function: Callable[[T], R], items: Sequence[T], readers: int = READERS) -> Iterator[R]:
    """What ``function`` returns for each item, in their order. Raises what it raises, and leaves then what is left."""
    with ThreadPoolExecutor(readers) as pool:
        yield from pool.map(function, items)
