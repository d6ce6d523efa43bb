"""What is kept of an entry that is compiled otherwise now: both, and how they differ, once for each key."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from safecache.files import filesystem, folders
from safecache.files.folders import Folder
from safecache.places import ours
from safecache.recompile_check.comparison import Key
from safecache.signing import side_records

__all__ = ["is_kept", "keep"]

# The oldest go first.
_MOST = 20
_FOUND, _MADE, _TEXT, _SUMMARY = "in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json"
_RECORD = "record"


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
