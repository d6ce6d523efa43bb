"""Hides a sample of hits, so that torch compiles where it stands, and compares what it saves with what was hidden."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import Found
from safecache.recompile_check import comparison, verdicts
from safecache.recompile_check.comparison import Key
from safecache.reporting.kinds import Kind
from safecache.session import Part
from safecache.settings import config
from safecache.store import entry_files

__all__ = ["hides", "is_new"]

# Bytes that wait for what is saved: beyond, nothing more is hidden.
_MOST_BYTES = 256 << 20


class _State:
    def __init__(self) -> None:
        # By key, what was found under it and not yet compared, before the entries that it refers to.
        self.hidden: dict[Key, Sequence[Found]] = {}
        # What torch has missed for that: a key is compiled again once in a process.
        self.sampled: set[Key] = set()
        self.size = 0


# A forked child compiles what it hits itself.
_state: Part[_State] = Part(_State)


def hides(found: Sequence[Found]) -> bool:
    """Tell whether these hits are of the sample: all ranks of a job say the same of a key.

    The graphs that a hidden entry refers to are hidden too, as each is looked up.
    """
    if not config.current().recompile_sample or not found:
        return False
    state, key = _state.now, _key_of(found[0])
    with _state.lock:
        if key in state.sampled:
            return False
        if key not in state.hidden:
            size = sum(len(each.content) for each in found)
            if not _is_of_sample(key) or state.size + size > _MOST_BYTES:
                return False
            state.size += size
            state.hidden |= {_key_of(each): found[number:] for number, each in enumerate(found)}
        state.sampled.add(key)
        return True


def is_new(ref: Ref, content: bytes) -> bool:
    """Compare what is about to be saved with what was hidden under its key; False if they are alike."""
    state, key = _state.now, (ref.kind, ref.key)
    with _state.lock:
        found = state.hidden.pop(key, None)
        if found is None:
            return True
        state.size -= len(found[0].content)
    hidden = {_key_of(each): each.content for each in found}
    try:
        differences = comparison.compare(key, hidden, _Made(ref.root, {key: content}))
    except Exception as error:  # of a class that cannot be taken apart
        verdicts.report_uncompared(f"{ref.kind.noun} {ref.key}", f"{type(error).__name__}: {error}")
        return True
    if differences:
        verdicts.report_difference(found[0], content, differences)
    else:
        verdicts.count_alike()
    return bool(differences)


def _key_of(found: Found) -> Key:
    return found.ref.kind, found.ref.key


def _is_of_sample(key: Key) -> bool:
    digest = hashlib.sha256(f"{config.job_id()} {key[0].word} {key[1]}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < config.current().recompile_sample * 2**64


class _Made(dict[Key, bytes]):
    """Maps keys to what was made: the entry, and graphs that it refers to, each read when it is asked for."""

    def __init__(self, root: str, made: Mapping[Key, bytes]) -> None:
        super().__init__(made)
        self._root = root

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or bool(layout.list_entries(Ref(key[0], key[1], self._root).directory))

    def __missing__(self, key: tuple[Kind, str]) -> bytes:
        ref = Ref(key[0], key[1], self._root)
        for name in layout.list_entries(ref.directory):
            return entry_files.read_entry(ref.file(name).path, entry_files.max_entry_size(ref.kind))
        raise KeyError(key)
