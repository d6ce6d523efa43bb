"""Judges the entries of a cache as a load would, without unpickling or changing any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from safecache import store, trust
from safecache.layout import Location
from safecache.reasons import Reason

__all__ = ["Audit", "Refused", "audit"]


class Refused(NamedTuple):
    """An entry that a load would not use."""

    path: str
    reason: str
    evidence: str


class Audit(NamedTuple):
    """``outcomes``: how many entries by the value of their Count or Reason."""

    outcomes: dict[str, int]
    refused: list[Refused]


def audit(locations: Iterable[Location]) -> Audit:
    """Judge every one of them. Raises OSError from ``locations`` alone."""
    outcomes: Counter[str] = Counter()
    refused = []
    for location in locations:
        found = _examine(location)
        outcomes[found.reason if isinstance(found, Refused) else found] += 1
        if isinstance(found, Refused):
            refused.append(found)
    return Audit(dict(outcomes), refused)


def _examine(location: Location) -> str | Refused:
    try:
        content = store.read_entry(location.path)
    except store.UnusableEntry as error:
        return Refused(location.path, error.reason.value, error.detail)
    except OSError as error:
        return Refused(location.path, Reason.UNREADABLE.value, error.strerror or str(error))
    found = trust.examine(content, location.kind, location.cache_key, location.path)
    if isinstance(found, trust.Refusal):
        return Refused(location.path, found.reason.value, found.evidence)
    return found.value
