"""Work in threads: opening a file waits for the disk or the network, and many libraries set no limit to such waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["READERS", "call_with_timeout", "map_in_threads"]

READERS = 4

T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(function: Callable[[T], R], items: Sequence[T], readers: int = READERS) -> Iterator[R]:
    """Yield what ``function`` returns for each item, in order, from ``readers`` threads. Its first error ends this."""
    with ThreadPoolExecutor(readers) as pool:
        yield from pool.map(function, items)


def call_with_timeout(seconds: float, action: Callable[[], R], name: str) -> R:
    """Call ``action`` in a thread called ``name`` and return its result. Raises what ``action`` raises.

    Raises TimeoutError after so many ``seconds``. The thread then goes on until ``action`` returns.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((True, action()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        has_returned, answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if not has_returned:
        raise answer
    result: R = answer
    return result
