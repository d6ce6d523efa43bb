"""Why a lookup missed, in words: the nearest key of the same function, graph or kernel, and in what it differs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from safecache.explain import key_differences, key_records
from safecache.explain.key_differences import Difference
from safecache.explain.key_records import Absence, KeyRecord
from safecache.history.lookups import Layer
from safecache.places import layout
from safecache.settings import units
from safecache.store import quarantine

__all__ = ["Explanation", "explain", "refusals"]

_LAYERS = {
    Layer.AOT: "AOTAutograd entry",
    Layer.FX: "FX graph entry",
    Layer.TRITON: "Triton kernel",
    Layer.MODEL: "file compiled ahead of time",
}
_QUARANTINE = os.path.join(".safecache", "quarantine")


class Explanation(NamedTuple):
    """``refused``: why entries of this key were; ``nearest``: the key it was compared with, if any.

    ``remains``: whether something lies in the place of the key that missed.
    """

    record: KeyRecord
    absence: Absence
    refused: list[str]
    nearest: KeyRecord | None
    differences: list[Difference]
    remains: bool = False

    @property
    def cause(self) -> str:
        """In a sentence without an end."""
        if self.refused:
            return f"its entry was refused: {'; '.join(self.refused)}"
        if self.absence is Absence.EVICTED:
            saved = units.write(self.record.first)
            if self.remains:
                return f"the same key was saved on {saved}, and what is there was refused, or its guards failed"
            return f"the same key was saved on {saved}, and its entry is gone: removed, evicted or not readable"
        if self.nearest is None:
            return "nothing was ever saved under this name, and nothing like it"
        if not self.differences:
            return "its key differs from the nearest one in nothing that is recorded"
        return "; ".join(map(str, self.differences))

    @property
    def _against(self) -> str:
        if self.nearest is None:
            return ""
        of = "" if self.nearest.name == self.record.name else f" of {self.nearest.name}, the nearest under another name"
        return f" (against {self.nearest.key[:16]}…{of}, saved on {units.write(self.nearest.made)})"

    def __str__(self) -> str:
        return f"{_LAYERS[self.record.layer]} of {self.record.name}: {self.cause}{self._against}"


def explain(record: KeyRecord, root: str, *, saved: bool) -> Explanation:
    """Why the cache ``root`` had nothing under the record's key.

    ``saved``: the miss was followed by a save, whose record this is; else the lookup has just missed.
    """
    own = record if saved else key_records.recall(record.layer, record.key, record.name, root)
    before = saved and record.first < record.made
    if own is not None and (before or not saved):
        remains = not saved and _remains(record, root)
        return Explanation(own, Absence.EVICTED, refusals(record.key, root), None, [], remains)
    others = _earlier(key_records.same_name(record.layer, record.name, root), record, saved)
    absence = Absence.KEY_DIFFERS if others else Absence.NEVER_SEEN
    # Of another name: what a function is called now, that was moved or renamed.
    others = others or _earlier(key_records.every(root, record.layer), record, saved)
    nearest = key_differences.nearest(record, others)
    differences = key_differences.compare(nearest, record) if nearest else []
    return Explanation(record, absence, [], nearest, differences)


def _earlier(records: list[KeyRecord], record: KeyRecord, saved: bool) -> list[KeyRecord]:
    return [other for other in records if other.key != record.key and (not saved or other.first <= record.made)]


def _remains(record: KeyRecord, root: str) -> bool:
    key = record.key
    places = {
        Layer.AOT: os.path.join(root, layout.AOT_FOLDER, key),
        Layer.FX: os.path.join(root, layout.FX_FOLDER, key[1:3], key),
        Layer.TRITON: os.path.join(root, key),
    }
    try:
        return bool(layout.list_entries(places[record.layer]))
    except OSError:
        return False


def refusals(key: str, root: str) -> list[str]:
    """Why entries of this key are in quarantine, each reason once, from the notes there; nobody vouches for them."""
    return sorted({f"{reason} (on {moment})" for reason, moment in _notes(key, os.path.join(root, _QUARANTINE))})


def _notes(key: str, directory: str) -> Iterator[tuple[str, str]]:
    try:
        names = [name for name in layout.list_entries(directory) if name.endswith(".json")]
    except OSError:
        return  # others may have closed it to us
    for name in names:
        note = quarantine.note_at(os.path.join(directory, name))
        if f"/{key}/" in note.get("from", ""):
            yield note.get("reason", ""), note.get("time", "")
