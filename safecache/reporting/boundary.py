"""The boundary around a feature: what fails in it is one report, and the compile goes on without the feature.

A cache, a pack, a remote or a side file may hold any bytes, and a parser of them may raise any exception. None of those
reaches a compile: each entry point of a feature stands in one of these blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safecache.reporting import events

__all__ = ["contain_errors"]


@contextmanager
def contain_errors(feature: str, effect: str) -> Iterator[None]:
    """Report any Exception that leaves this block, once for each feature and type, and go on after the block.

    ``feature`` is a noun phrase, such as "the remote cache", and ``effect`` a sentence that tells what happens instead.
    Errors that strict mode has raised pass unchanged. In strict mode any other raises CacheReadError from it.
    """
    try:
        yield
    except Exception as error:
        events.report_failure(feature, effect, error)
