"""Judges the entries and the compiled code of a cache as a load would, without loading or changing any.

And reads all of them, large libraries too: those a load takes if the kernel says that they are as they were sealed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from safecache.code import gate
from safecache.files import checks, parallel
from safecache.places.layout import Code, Location
from safecache.reporting.kinds import Count, Reason
from safecache.signing import keyring, trust
from safecache.signing.trust import Refusal
from safecache.store import entry_files

__all__ = ["Audit", "Refused", "audit"]


class Refused(NamedTuple):
    """A file that a load would not use."""

    path: str
    reason: str
    evidence: str


class Audit(NamedTuple):
    """``outcomes``: how many files by the value of their Count or Reason."""

    outcomes: dict[str, int]
    refused: list[Refused]


def audit(locations: Iterable[Location], code: Iterable[Code], tell: Callable[[], object] = lambda: None) -> Audit:
    """Judge every one of them, several at once. Raises OSError from the arguments alone.

    What is refused is in the order of the arguments. ``tell`` is called after each file.
    """
    outcomes: Counter[str] = Counter()
    refused = []
    for found in _each(locations, code):
        tell()
        outcomes[found.reason if isinstance(found, Refused) else found.value] += 1
        if isinstance(found, Refused):
            refused.append(found)
    return Audit(dict(outcomes), refused)


def _each(locations: Iterable[Location], code: Iterable[Code]) -> Iterator[Count | Refused]:
    keyring.current()  # by one thread: the first use makes a key
    files = [(each.path, partial(_entry, each)) for each in locations]
    return parallel.each(_examine, files + [(each.path, partial(_code, each)) for each in code])


def _examine(file: tuple[str, Callable[[], Count | Refusal]]) -> Count | Refused:
    path, judge = file
    try:
        found = judge()
    except checks.UnusableEntry as error:
        return Refused(path, error.reason.value, error.detail)
    except OSError as error:
        return Refused(path, Reason.UNREADABLE.value, error.strerror or str(error))
    return Refused(path, found.reason.value, found.evidence) if isinstance(found, Refusal) else found


def _entry(entry: Location) -> Count | Refusal:
    content = entry_files.read_entry(entry.path, entry_files.largest(entry.kind))
    return trust.examine(content, entry.kind, entry.cache_key, entry.path)


def _code(file: Code) -> Count | Refusal:
    return gate.judge(*file) or Count.CODE_VERIFIED
