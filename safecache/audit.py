"""Judges the entries and the compiled code of a cache as a load would, without loading or changing any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from safecache import store, trust, vouching
from safecache.layout import Code, Location
from safecache.reasons import Count, Reason
from safecache.trust import Refusal

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


def audit(locations: Iterable[Location], code: Iterable[Code]) -> Audit:
    """Judge every one of them. Raises OSError from the arguments alone."""
    outcomes: Counter[str] = Counter()
    refused = []
    for path, judge in [(each.path, partial(_entry, each)) for each in locations] + [
        (each.path, partial(_code, each)) for each in code
    ]:
        found = _examine(path, judge)
        outcomes[found.reason if isinstance(found, Refused) else found.value] += 1
        if isinstance(found, Refused):
            refused.append(found)
    return Audit(dict(outcomes), refused)


def _examine(path: str, judge: Callable[[], Count | Refusal]) -> Count | Refused:
    try:
        found = judge()
    except store.UnusableEntry as error:
        return Refused(path, error.reason.value, error.detail)
    except OSError as error:
        return Refused(path, Reason.UNREADABLE.value, error.strerror or str(error))
    return Refused(path, found.reason.value, found.evidence) if isinstance(found, Refusal) else found


def _entry(entry: Location) -> Count | Refusal:
    return trust.examine(store.read_entry(entry.path), entry.kind, entry.cache_key, entry.path)


def _code(file: Code) -> Count | Refusal:
    return vouching.judge(*file) or Count.CODE_VERIFIED
