"""Strikes against what processes have died of: a record under the seal of this user's own key, for each cache.

Two strikes quarantine the files of a guarded run. A crash that has left its text is two at once, any other death one. A
first run that ends well clears the strikes against its keys. But where a recompiled graph crashes again when it is
loaded, its key is not looked up for a month, or every second start would crash.

The records are among the user's own files (ours.find_user_path()): no file in a cache speaks against it.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from safecache.crash_guard.markers import Blame
from safecache.fs import filesystem, folders
from safecache.fs.folders import Folder
from safecache.places import layout, metadata
from safecache.places.refs import ARTIFACT, Ref, digest
from safecache.reporting import events, waits
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.settings import config
from safecache.signing import side_records
from safecache.store.quarantine import quarantine

__all__ = [
    "ASIDE",
    "BARRED",
    "NONE",
    "Strikes",
    "add",
    "clear",
    "find_keys",
    "forget",
    "read",
]

ASIDE, BARRED = 2, 4
# Seconds.
_LASTS = 30 * 86400.0
_PAUSES = 0.005, 0.005
# Keys, and files, in a record: the oldest go.
_MOST = 400
_RECORD, _DRAFT, _LOCK = "strikes", "strikes.draft", "strikes.lock"
# Libraries, sources and kernels that C++ names; in Triton's cache, a directory for each kernel or library.
_CODE = re.compile(r"[a-z2-7]{2}/[A-Za-z0-9_.-]+\.(so|py|cpp|cubin|hsaco|spv)")
_KERNEL = re.compile(rf"({layout.TRITON_FOLDER}/\d+/)?{layout.TRITON_KEY.pattern}(/[A-Za-z0-9_.-]+\.so)?")


class Strikes(NamedTuple):
    """Strikes against keys, and files quarantined for them, by digests. Times are in seconds since the epoch."""

    keys: dict[str, tuple[int, float]]
    files: dict[str, float]

    def count_strikes(self, ref: Ref) -> int:
        """Return the number of strikes against a key."""
        return self.keys.get(digest(ref.kind.word, ref.key), (0, 0.0))[0] if self.keys else 0

    def has_file(self, ref: Ref, name: str) -> bool:
        """Tell whether the entry of this name was quarantined: another tier may have it too."""
        return bool(self.files) and digest(ref.kind.word, ref.key, name) in self.files


NONE = Strikes({}, {})


def find_keys(names: Iterable[str]) -> list[tuple[Kind, str, str]]:
    """Return (kind, key, own name) of each entry or artifact in a trial; of libraries alone, the name is the key."""
    found = filter(None, (layout.locate(os.path.join("/", name)) for name in names))
    entries = [(each.kind, each.cache_key, os.path.basename(each.path)) for each in found]
    entries += [(Kind.OTHER, each[1], each[2]) for each in map(ARTIFACT.fullmatch, names) if each is not None]
    return entries or [(Kind.NATIVE_CODE, name, name) for name in names]


def read(root: str) -> Strikes:
    """Return the strikes in the cache ``root`` that count today; none without a record of this user. Raises OSError."""
    try:
        with _open_folder(root) as folder:
            return _read_strikes(folder, root)
    except FileNotFoundError:
        return NONE


def add(root: str, names: list[str], blame: Blame, reason: Reason, began: float) -> list[str] | None:
    """Add strikes against the keys of these files. Return the new paths of what is quarantined; None if nothing is yet.

    ``began``: when the process looked at the strikes, in seconds since the epoch. Processes that looked before the last
    strike add no other: they died together. Raises OSError.
    """
    own = find_keys(names)
    with _change_strikes(root) as found:
        now = time.time()  # not before the wait for the lock: those that look meanwhile know nothing of it
        raised = [_raise_strikes(found, digest(kind.word, key), blame, began, now) for kind, key, _ in own]
        if any(raised):
            found.files.update({digest(kind.word, key, name): now for kind, key, name in own})
    if not any(raised):
        return None
    moved = [quarantine(os.path.join(root, name), root, reason) for name in names if _is_ours(name)]
    for _ in filter(None, moved):
        events.count(Count.QUARANTINED)
    return [path for path in moved if path is not None]


def _raise_strikes(found: Strikes, of: str, blame: Blame, began: float, now: float) -> bool:
    """Update the strikes against a key, and tell whether its files are to be quarantined now."""
    before, last = found.keys.get(of, (0, 0.0))
    if before and last >= began:
        return before % ASIDE == 0
    # Doubt alone never bars a key, nor does it quarantine a recompiled entry.
    number = min(before + ASIDE, BARRED) if blame is Blame.SURE else max(before, min(before + 1, BARRED - 1))
    found.keys[of] = number, now
    return number // ASIDE > before // ASIDE or (blame is Blame.SURE and number == BARRED)


def clear(root: str, names: Iterable[str]) -> None:
    """Remove the strikes against the keys of these files. Errors of the file system are ignored."""
    with suppress(OSError), _change_strikes(root) as found:
        for kind, key, _ in find_keys(names):
            found.keys.pop(digest(kind.word, key), None)


def forget(root: str) -> int:
    """Remove all strikes in the cache ``root``. Return the number of keys they were against. Raises OSError."""
    try:
        with _open_folder(root) as folder:
            forgotten = len(_read_strikes(folder, root).keys)
            folder.unlink(_RECORD)
    except FileNotFoundError:
        return 0
    return forgotten


@contextmanager
def _open_folder(root: str, *, make: bool = False) -> Iterator[Folder]:
    """Open the folder of the record. Raises FileNotFoundError for a user without a home, and OSError."""
    home = config.current().config_home
    if home is None:
        raise FileNotFoundError(errno.ENOENT, "no home directory")
    place = metadata.find_user_path(home, root)
    if make:
        os.makedirs(place, mode=0o700, exist_ok=True)
    with folders.open_subdirectory(place) as folder:
        yield folder


@contextmanager
def _change_strikes(root: str) -> Iterator[Strikes]:
    """Yield the strikes of this cache, and write them after this block has changed them. Raises OSError."""
    with _open_folder(root, make=True) as folder:
        lock = folder.open(_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # It is held for moments.
            held, _ = waits.wait(lambda _: filesystem.try_lock(lock) or None, waits.UNPROVEN, pauses=_PAUSES)
            if not held:
                raise BlockingIOError(errno.EAGAIN, "another process writes there")
            found = _read_strikes(folder, root)
            yield found
            keys = dict(sorted(found.keys.items(), key=lambda row: row[1][1])[-_MOST:])
            files = dict(sorted(found.files.items(), key=lambda row: row[1])[-_MOST:])
            sealed = side_records.seal_record(_make_subject(root), {"by_key": keys, "by_file": files})
            if sealed is not None:
                with suppress(FileNotFoundError):  # of a process that was killed
                    folder.unlink(_DRAFT)
                folder.write(_DRAFT, sealed)
                folder.rename(_DRAFT, folder, _RECORD)
        finally:
            filesystem.close(lock)


def _read_strikes(folder: Folder, root: str) -> Strikes:
    try:
        stated, now = side_records.read_own(folder, _RECORD, _make_subject(root)), time.time()
    except FileNotFoundError:
        return Strikes({}, {})
    if stated is None:
        return Strikes({}, {})
    keys = {str(each): (int(number), float(at)) for each, (number, at) in stated["by_key"].items()}
    files = {str(each): float(at) for each, at in stated["by_file"].items()}
    return Strikes(
        {each: row for each, row in keys.items() if now - row[1] <= _LASTS},
        {each: at for each, at in files.items() if now - at <= _LASTS},
    )


def _make_subject(root: str) -> str:
    return f"strikes in {root}"


def _is_ours(name: str) -> bool:
    """Tell whether a cache has such a file: whoever wrote the name, nothing else is moved."""
    is_entry = layout.locate(os.path.join("/", name)) is not None
    is_plain = os.path.normpath(name) == name and not name.startswith(("/", "."))
    return is_plain and (is_entry or bool(_CODE.fullmatch(name) or _KERNEL.fullmatch(name)))
