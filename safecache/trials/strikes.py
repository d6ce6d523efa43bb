"""Strikes against what processes have died of, and what is set aside for them: names in the cache, and no content.

Two strikes set the files of a trial aside. A crash that has left its text is two at once, any other death one. A first
run that ends well takes back those of its keys: but where what was compiled anew crashes again when it is loaded, its
key is not looked up for a month, or every second start would crash.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from safecache.files.folders import Folder
from safecache.places import layout
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.store.quarantine import quarantine
from safecache.trials import markers
from safecache.trials.evidence import Blame

__all__ = [
    "ASIDE",
    "BARRED",
    "NONE",
    "Strikes",
    "add",
    "artifact",
    "clear",
    "dated",
    "digest",
    "forget",
    "is_artifact",
    "keys_of",
    "read",
]

ASIDE, BARRED = 2, 4
# Seconds.
_LASTS = 30 * 86400.0
_NAME = re.compile(r"(key|file)-([0-9a-f]{32})\.(\d)")
# Libraries, sources and kernels that C++ names; in Triton's cache, a directory for each kernel or library.
_CODE = re.compile(r"[a-z2-7]{2}/[A-Za-z0-9_.-]+\.(so|py|cpp|cubin|hsaco|spv)")
# Of what has no place in the cache: what is the same when it is compiled anew, and what is not.
_ARTIFACT = re.compile(r"artifact/([0-9a-f]{32})/([0-9a-f]{32})")
_KERNEL = re.compile(rf"({layout.TRITON_FOLDER}/\d+/)?{layout.TRITON_KEY.pattern}(/[A-Za-z0-9_.-]+\.so)?")


class Strikes(NamedTuple):
    """What is against keys and files, by their digests."""

    keys: dict[str, int]
    files: frozenset[str]

    def of_key(self, kind: Kind, key: str) -> int:
        """How many strikes."""
        return self.keys.get(digest(kind.word, key), 0) if self.keys else 0

    def has_file(self, kind: Kind, key: str, name: str) -> bool:
        """Whether the entry of this name was set aside: another tier may have it too."""
        return bool(self.files) and digest(kind.word, key, name) in self.files


NONE = Strikes({}, frozenset())


def digest(*parts: str) -> str:
    """What stands for a key, by the word of its kind and itself, or for a file, by its name too."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def artifact(key: str, which: str) -> str:
    """The name of an artifact: ``key`` stays when it is compiled anew, and ``which`` does not."""
    return f"artifact/{digest(key)}/{digest(key, which)}"


def is_artifact(name: str) -> bool:
    """Whether artifact() has made that name."""
    return _ARTIFACT.fullmatch(name) is not None


def keys_of(names: Iterable[str]) -> list[tuple[Kind, str, str]]:
    """Kind, key and own name of the entries, or artifacts, in a trial; of libraries alone, the name is the key."""
    found = filter(None, (layout.locate(os.path.join("/", name)) for name in names))
    entries = [(each.kind, each.cache_key, os.path.basename(each.path)) for each in found]
    entries += [(Kind.OTHER, each[1], each[2]) for each in map(_ARTIFACT.fullmatch, names) if each is not None]
    return entries or [(Kind.NATIVE_CODE, name, name) for name in names]


def read(place: str) -> Strikes:
    """Those that count today. Raises OSError."""
    keys: dict[str, int] = {}
    files: set[str] = set()
    with markers.opened(place) as folder:
        for name, what, of, number in _listed(folder):
            with suppress(OSError):
                if time.time() - folder.status(name).st_mtime > _LASTS:
                    folder.unlink(name)
                elif what == "file":
                    files.add(of)
                else:
                    keys[of] = max(number, keys.get(of, 0))
    return Strikes(keys, frozenset(files))


def dated(place: str) -> dict[str, tuple[int, float]]:
    """How many count today against each key, by its digest, and when the last was, in seconds since the epoch.

    Raises OSError.
    """
    found: dict[str, tuple[int, float]] = {}
    with suppress(FileNotFoundError), markers.opened(place) as folder:
        for name, what, of, number in _listed(folder):
            with suppress(OSError):
                moment = folder.status(name).st_mtime
                if what == "key" and time.time() - moment <= _LASTS:
                    found[of] = max((number, moment), found.get(of, (0, 0.0)))
    return found


def _listed(folder: Folder) -> Iterator[tuple[str, str, str, int]]:
    for name in folder.names():
        found = _NAME.fullmatch(name)
        if found is not None:
            yield name, found[1], found[2], int(found[3])


def add(place: str, root: str, names: list[str], blame: Blame, reason: Reason, began: float) -> list[str] | None:
    """Strikes against the keys of these files; the new paths of what was set aside for that, None if nothing is yet.

    ``began``: the process, in seconds since the epoch. Of what has begun before the last strike one is enough: those
    are the processes that died together. Raises OSError.
    """
    own = keys_of(names)
    with markers.opened(place, make=True) as folder:
        raised = [_raise(folder, digest(kind.word, key), blame, began) for kind, key, _ in own]
        if not any(raised):
            return None
        for kind, key, name in own:
            _touch(folder, f"file-{digest(kind.word, key, name)}.{ASIDE}")
    moved = [quarantine(os.path.join(root, name), root, reason) for name in names if _is_ours(name)]
    for _ in filter(None, moved):
        events.count(Count.QUARANTINED)
    return [path for path in moved if path is not None]


def _raise(folder: Folder, of: str, blame: Blame, began: float) -> bool:
    """Whether these strikes are enough to set aside what they are against."""
    had = {number: name for name, what, key, number in _listed(folder) if (what, key) == ("key", of)}
    before = max(had, default=0)
    if before and folder.status(had[before]).st_mtime >= began:
        return before % ASIDE == 0
    # Doubt alone never bars a key, nor does it set aside twice what was compiled anew.
    now = min(before + ASIDE, BARRED) if blame is Blame.SURE else max(before, min(before + 1, BARRED - 1))
    _touch(folder, f"key-{of}.{now}")
    for number, name in had.items():
        if number != now:
            with suppress(OSError):
                folder.unlink(name)
    return now // ASIDE > before // ASIDE or (blame is Blame.SURE and now == BARRED)


def _touch(folder: Folder, name: str) -> None:
    with suppress(FileExistsError):
        folder.write(name, b"")


def clear(place: str, names: Iterable[str]) -> None:
    """Take back those against the keys of these files."""
    digests = {digest(kind.word, key) for kind, key, _ in keys_of(names)}
    with suppress(OSError), markers.opened(place) as folder:
        for name, what, of, _ in _listed(folder):
            if what == "key" and of in digests:
                folder.unlink(name)


def forget(place: str) -> int:
    """Take back all; of how many keys."""
    forgotten = 0
    with suppress(FileNotFoundError), markers.opened(place) as folder:
        for name, what, _, _ in _listed(folder):
            folder.unlink(name)
            forgotten += what == "key"
    return forgotten


def _is_ours(name: str) -> bool:
    """Whether a cache has such a file: whoever wrote the name, nothing else is moved."""
    is_entry = layout.locate(os.path.join("/", name)) is not None
    is_plain = os.path.normpath(name) == name and not name.startswith(("/", "."))
    return is_plain and (is_entry or bool(_CODE.fullmatch(name) or _KERNEL.fullmatch(name)))
