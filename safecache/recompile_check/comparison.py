"""Entries of one key from two compiles, compared, and what is shown of the parts that differ."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from safecache.recompile_check import parts
from safecache.reporting.kinds import Kind
from safecache.signing import trust

__all__ = ["Difference", "Key", "compare", "show"]

Key = tuple[Kind, str]
# Of an entry that is another altogether, a few parts say so; the code first, which is what matters.
_MOST_PARTS, _MOST_LINES, _LONGEST_LINE = 5, 40, 200
_FIRST = ("source_code", "guards", "constants", "mutated")


class Difference(NamedTuple):
    """A part that differs, by its place in the entry, and a unified diff of it."""

    part: str
    diff: str


def compare(key: Key, found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> list[Difference]:
    """How the entry ``found`` under this key differs from the one that was ``made``; nothing if not at all.

    Both may hold the FX graph entries that an AOTAutograd entry refers to: what differs is then shown of those too.
    Only what a trusted key has sealed is unpickled: raises ValueError for anything else, and what unpickling does.
    """
    before, after = parts.of_entry(_loaded(key, found)), parts.of_entry(_loaded(key, made))
    differing = [place for place in {**before, **after} if before.get(place) != after.get(place)]
    shown = [Difference(each, _diff(before.get(each, ""), after.get(each, ""))) for each in _in_order(differing)]
    referred = _referred(before, after) if shown and key[0] is Kind.AOT_ENTRY else ()
    return [*(each for pair in referred for each in _graphs(pair, found, made)), *shown][:_MOST_PARTS]


def _loaded(key: Key, content: Mapping[Key, bytes]) -> object:
    refusal = trust.judge(content[key], *key, None)
    if refusal is not None:
        raise ValueError(f"{key[0].noun} {key[1]}: {refusal.evidence}")
    return pickle.loads(content[key])  # noqa: S301  judged above


def _in_order(places: list[str]) -> list[str]:
    def rank(place: str) -> tuple[int, str]:
        return next((number for number, word in enumerate(_FIRST) if word in place), len(_FIRST)), place

    return sorted(places, key=rank)


def _referred(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[Key, Key]]:
    """The graphs that two AOTAutograd entries name in the same place, where they are others."""
    names = [place for place in before if f".{parts.KEYS}." in f".{place}" and place in after]
    return [((Kind.FX_ENTRY, before[each]), (Kind.FX_ENTRY, after[each])) for each in names]


def _graphs(pair: tuple[Key, Key], found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> Iterator[Difference]:
    """What differs in the code of two graphs of different keys, as far as both are there."""
    one, other = pair
    if one != other and one in found and other in made:
        before, after = (parts.of_entry(_loaded(*each)) for each in ((one, found), (other, made)))
        if before.get("source_code") != after.get("source_code"):
            yield Difference("source_code", _diff(before.get("source_code", ""), after.get("source_code", "")))


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "in the cache", "compiled now", "", "", 2, "")
    shown = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in islice(lines, _MOST_LINES)]
    return "\n".join([*shown, *(["…"] if next(lines, None) is not None else [])])


def show(differences: list[Difference]) -> str:
    """All of them, as text."""
    return "\n".join(f"{part}:\n{diff}" for part, diff in differences)
