"""Hides a sample of hits, so that torch compiles where it stands, compares what it saves, and reports what differs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from safecache.files import filesystem, folders
from safecache.files.folders import Folder
from safecache.places import layout, ours
from safecache.places.refs import Ref
from safecache.ports import Found
from safecache.recompile_check import comparison
from safecache.recompile_check.comparison import Difference, Key
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.signing import side_records
from safecache.store import entry_files

__all__ = ["count_alike", "hides", "is_kept", "is_new", "keep", "report_difference", "report_uncompared"]

# Bytes that wait for what is saved: beyond, nothing more is hidden.
_MOST_BYTES = 256 << 20

_REMEDY = (
    "Something that decides about the code is not in its key, such as a custom operator's schema, or this graph is "
    "not compiled alike twice: see safecache help recompile_check."
)
# Of this process: a forked child is to say nothing of what its parent has used.
_differing: Part[list[str]] = Part(list)

# The oldest go first.
_MOST = 20
_FOUND, _MADE, _TEXT, _SUMMARY = "in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json"
_RECORD = "record"


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
        report_uncompared(f"{ref.kind.noun} {ref.key}", f"{type(error).__name__}: {error}")
        return True
    if differences:
        report_difference(found[0], content, differences)
    else:
        count_alike()
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


def count_alike() -> None:
    """Count an entry that is compiled now as it was then."""
    events.count(Count.RECOMPILED)


def report_uncompared(what: str, why: str) -> None:
    """Report what was compiled again and could not be compared."""
    events.report(Reason.NOT_RECOMPILED, f"{what} was not compared: {why}.", cause=why)


def report_difference(entry: Found, made: bytes, differences: list[Difference]) -> str:
    """Report it, keep both and set the entry aside; where its evidence lies then, "" for nowhere.

    Not set aside is what has differed before: it is compiled otherwise each time, and would be so at each start.
    """
    kind, key = entry.ref.kind, entry.ref.key
    root = entry.ref.root or config.cache_directory() or ""
    kept, said = "", "It has differed before, and is left where it is."
    if not is_kept(root, (kind, key)):
        kept, said = _kept(root, entry, made, differences)
        said = f"{said} {_moved(entry)}"
    text = f"{kind.noun} {entry.origin or key} is compiled otherwise now: {comparison.show(differences)}\n"
    _remember(f"{kind.noun} {key}")
    events.report(Reason.DIFFERS, text, cause=key, remedy=f"{said} {_REMEDY}")
    return kept


def _kept(root: str, entry: Found, made: bytes, differences: list[Difference]) -> tuple[str, str]:
    try:
        shown, facts = comparison.show(differences), {"path": entry.origin}
        place = keep(root, (entry.ref.kind, entry.ref.key), entry.content, made, shown, facts)
    except OSError as error:
        return "", f"Nothing could be kept as evidence: {error.strerror or error}."
    return place, f"Both are in {place}."


def _moved(entry: Found) -> str:
    if not entry.ref.root:
        return "It lies in a lower tier, and stays."
    moved = entry_files.quarantine(entry.origin, entry.ref.root, Reason.DIFFERS, entry.content)
    if moved is None:
        return "It could not be moved away, or was replaced since."
    events.count(Count.QUARANTINED)
    return f"It was moved to {moved}, and what is compiled now is used and saved."


def _remember(what: str) -> None:
    if not _differing.now:
        call_at_exit(_say_at_the_end)
    _differing.now.append(what)


def _say_at_the_end() -> None:
    differing = _differing.now
    if differing and config.current().strict:
        which = ", ".join(differing)
        text = f"safecache: {len(differing)} entries are compiled otherwise now: {which}"
        events.log_line(logging.ERROR, text)
        _differing.reset()


def is_kept(root: str, key: Key) -> bool:
    """Whether this user has kept some of this key in this cache: what others have left there proves nothing."""
    name = _name(key)
    try:
        with folders.open_subdirectory(root, (ours.FOLDER, ours.DIFFERENCES, name)) as folder:
            descriptor = folder.open(_RECORD, os.O_RDONLY)
            try:
                unverified = filesystem.pread(descriptor, side_records.LARGEST + 1, 0)
            finally:
                filesystem.close(descriptor)
    except OSError:
        return False
    return side_records.open_record(unverified, _subject(name), own=True) is not None


def keep(root: str, key: Key, found: bytes, made: bytes, text: str, facts: Mapping[str, str]) -> str:
    """Where it lies then, below the cache ``root``. Raises OSError, with nothing left behind."""
    name = _name(key)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    summary = {"kind": key[0].value, "cache_key": key[1], "time": moment, **facts}
    content = {_FOUND: found, _MADE: made, _TEXT: text.encode(), _SUMMARY: json.dumps(summary).encode()}
    sealed = side_records.seal_record(_subject(name), {"time": moment})
    if sealed is not None:
        content[_RECORD] = sealed
    with folders.open_subdirectory(root, (ours.FOLDER, ours.DIFFERENCES), make=True) as place:
        draft = f".{name}.{os.urandom(4).hex()}"
        try:
            with place.enter(draft, make=True) as folder:
                for each, data in content.items():
                    folder.write(each, data)
            # That of an earlier time is of an entry that was compiled anew since.
            with suppress(FileNotFoundError):
                place.remove(name)
            place.rename(draft, place, name)
        except OSError:
            with suppress(OSError):
                place.remove(draft)
            raise
        with suppress(OSError):  # it is kept, and the next makes room
            _make_room(place)
    return ours.metadata_path(root, ours.DIFFERENCES, name)


def _make_room(place: Folder) -> None:
    kept = sorted(place.names(), key=lambda each: folders.modified(f"{place.path}/{each}"), reverse=True)
    for each in kept[_MOST:]:
        with suppress(FileNotFoundError):  # another process has removed it
            place.remove(each)


def _subject(name: str) -> str:
    return f"difference {name}"


def _name(key: Key) -> str:
    return f"{key[0].word}-{hashlib.sha256(key[1].encode()).hexdigest()[:16]}"
