"""The marker of a process: a locked file, in the cache, that says what it is running for the first time.

The kernel releases the lock when the process dies, however it dies (flock(2)), and what was written stays. That is done
by pwrite(2): a mapping would save that call, but end the process (SIGBUS) where the disk is full or fails. Who can
write to the cache can leave any marker there: only what this user's own key has sealed is believed of one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

from safecache.files import filesystem, folders
from safecache.files.folders import Folder
from safecache.places import ours
from safecache.reporting import waits
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.signing import side_records
from safecache.trials import evidence

__all__ = ["Death", "Marker", "deaths", "home", "opened", "own"]

_NAME = re.compile(r"run-\d+-[0-9a-f]{12}")
# First who it is of, then what each thread runs: sealed records, each behind a line with its length, which is empty for
# none. And from _EVIDENCE on what faulthandler has written of a crash.
_HEADER, _SLOT, _SLOTS = 4096, side_records.LARGEST, 8
_LENGTH = 16
# Files of one trial. Of more the entries come first.
_MOST_NAMES = 256
_EVIDENCE, _LONGEST_EVIDENCE = _HEADER + _SLOT * _SLOTS, 16 << 10
_MOST_OWN = 8
# Looked at in one go: a job of thousands of processes in one cache has as many.
_MOST = 64
# Seconds between looks at a marker that another process looks at.
_PAUSES = 0.005, 0.005


class Death(NamedTuple):
    """Of a process, as its marker tells. ``began``: in seconds since the epoch. ``running``: each trial's files.

    ``said``: what faulthandler has written; ``around``: see evidence.host_oom_state().
    """

    pid: int
    began: float
    around: dict[str, Any]
    running: list[list[str]]
    said: str


class Marker:
    """This process's, which it holds the lock of."""

    def __init__(self, root: str, name: str, descriptor: int) -> None:
        self.root, self.name, self.descriptor = root, name, descriptor
        self._free = list(range(_SLOTS))

    def arm(self, names: list[str]) -> int | None:
        """Write that these files are being run; what to disarm() then. None if too much is run at once."""
        with _own.lock:
            slot = self._free.pop(0) if self._free else None
        if slot is not None:
            self.rearm(slot, names)
        return slot

    def rearm(self, slot: int, names: list[str]) -> None:
        """As arm(), of what more belongs to that trial. What has no room is left out: the entries come first."""
        for number in (_MOST_NAMES, _MOST_NAMES // 4, 4):
            sealed = side_records.seal_record(_subject(self.name), {"names": names[:number]})
            if sealed is not None and len(sealed) <= _SLOT - _LENGTH:
                self._write(_framed(sealed), slot)
                break

    def disarm(self, slot: int) -> None:
        """It has ended, well or by an exception."""
        self._write(b"\n".rjust(_LENGTH), slot)
        with _own.lock:
            self._free.append(slot)

    def _write(self, content: bytes, slot: int) -> None:
        with suppress(OSError):  # a full disk: a death is then not noticed, or by another's crash
            os.pwrite(self.descriptor, content, _HEADER + slot * _SLOT)

    def remove(self) -> None:
        """Unlink and unlock it, at the end of this process."""
        with suppress(OSError), opened(self.root) as folder:
            folder.unlink(self.name)
        self.close()

    def close(self) -> None:
        """As a child that has it from its parent, whose lock stays."""
        descriptor, self.descriptor = self.descriptor, -1
        with suppress(OSError):
            filesystem.close(descriptor)


class _Own(dict[str, "Marker | None"]):
    """The markers of this process."""

    def end(self) -> None:
        for marker in filter(None, list(self.values())):
            marker.remove()
        self.clear()

    def in_child(self) -> _Own:
        # The parent's trials are not the child's; and the lock lasts as long as any process has its descriptor.
        for marker in filter(None, list(self.values())):
            marker.close()
        self.clear()
        return _Own()


_own: Part[_Own] = Part(_Own, _Own.in_child)


def home(root: str) -> str:
    """Where the markers of the cache ``root`` lie: there, or for one that cannot be written among the user's own."""
    mine = config.current().config_home
    if mine is None or not os.path.isdir(root) or os.access(root, os.W_OK, effective_ids=True):
        return root
    return ours.user_metadata_path(mine, root)


def opened(place: str, *, make: bool = False) -> AbstractContextManager[Folder]:
    """The folder of markers there, see home(). Raises OSError."""
    return folders.open_subdirectory(place, [ours.FOLDER, ours.TRIALS], make=make)


def own(place: str) -> Marker | None:
    """This process's marker there, made when it is first asked for; None, for good, where none can be made.

    Artifacts that are unpacked are caches of their own: the first few of a process have a marker, which stays open.
    """
    own = _own.now
    if place not in own and len(own) < _MOST_OWN:
        with _own.lock:
            if place not in own:
                own[place] = _made(place)
                call_at_exit(own.end)
    return own.get(place)


def _made(place: str) -> Marker | None:
    name = f"run-{os.getpid()}-{secrets.token_hex(6)}"
    header = {"pid": os.getpid(), "began": time.time(), "around": evidence.host_oom_state()}
    sealed = side_records.seal_record(_subject(name), header)
    if sealed is None:
        return None  # no later process could believe it
    try:
        if not os.path.isdir(place):
            os.makedirs(place, mode=0o700, exist_ok=True)
        with opened(place, make=True) as folder:
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    marker = Marker(place, name, descriptor)
    try:
        if filesystem.is_scarce(descriptor):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        # An empty one is let be by others, until it is locked.
        filesystem.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.pwrite(descriptor, _framed(sealed), 0)
        os.lseek(descriptor, _EVIDENCE, os.SEEK_SET)
    except OSError:
        marker.remove()
        return None
    return marker


def deaths(place: str) -> Iterator[Death]:
    """Of the processes whose markers lie there, each once for all who ask, and its marker is gone after that.

    Whoever is told of one holds it for that time, and others wait for it, waits.UNPROVEN seconds in all. Raises
    OSError.
    """
    with opened(place) as folder:
        names = [name for name in folder.names() if _NAME.fullmatch(name)]
        mine = {marker.name for marker in _own.now.values() if marker is not None}
        deadline = time.monotonic() + waits.remaining(waits.UNPROVEN)
        for name in random.sample(names, min(len(names), _MOST)):
            if name not in mine:
                with suppress(OSError), _held(folder, name, deadline) as descriptor:
                    try:
                        found = _parsed(name, filesystem.pread(descriptor, _EVIDENCE + _LONGEST_EVIDENCE, 0))
                        if found is not None:
                            yield found
                    finally:  # whatever becomes of the judgement, or each start would come to the same
                        folder.unlink(name)


@contextmanager
def _held(folder: Folder, name: str, deadline: float) -> Iterator[int]:
    """The descriptor of a dead process's marker, locked for this block. Raises OSError if it is not to be judged."""
    descriptor = folder.open(name, os.O_RDWR)
    try:
        status = filesystem.fstat(descriptor)
        theirs = status.st_uid != os.geteuid() and not config.current().shared
        if not stat.S_ISREG(status.st_mode) or not status.st_size or theirs:
            raise OSError(errno.EPERM, "no marker of ours")
        _hold(descriptor, deadline)
        if not os.path.samestat(folder.status(name), status):
            raise FileNotFoundError(errno.ENOENT, "another process has judged it")
        yield descriptor
    finally:
        filesystem.close(descriptor)


def _hold(descriptor: int, deadline: float) -> None:
    """Lock it, or wait for another's look until ``deadline``, by time.monotonic().

    Raises BlockingIOError for a process that lives, and at the end.
    """
    if filesystem.try_lock(descriptor):
        return
    if filesystem.try_lock(descriptor, fcntl.LOCK_SH):  # who looks at one excludes all others
        filesystem.flock(descriptor, fcntl.LOCK_UN)
        raise BlockingIOError(errno.EAGAIN, "its process lives")
    left = deadline - time.monotonic()
    held, waited = waits.wait(lambda _: filesystem.try_lock(descriptor) or None, left, pauses=_PAUSES)
    waits.charge(waited, in_vain=True)
    if not held:
        raise BlockingIOError(errno.EAGAIN, "another process looks at it")


def _parsed(name: str, unverified: bytes) -> Death | None:
    """None for what this user's own key has not sealed, such as of a process that was killed while it wrote."""
    header = _read(name, unverified[:_HEADER])
    if header is None:
        return None
    slots = [_read(name, unverified[at : at + _SLOT]) for at in range(_HEADER, _EVIDENCE, _SLOT)]
    running = [each["names"][:_MOST_NAMES] for each in slots if each is not None and "names" in each]
    said = unverified[_EVIDENCE:].decode(errors="replace")
    return Death(header["pid"], header["began"], header["around"], running, said)


def _framed(sealed: bytes) -> bytes:
    return b"%*d\n" % (_LENGTH - 1, len(sealed)) + sealed


def _read(name: str, unverified: bytes) -> dict[str, Any] | None:
    length = unverified[:_LENGTH].strip()
    if not length.isdigit():
        return None
    return side_records.open_record(unverified[_LENGTH : _LENGTH + int(length)], _subject(name), own=True)


def _subject(name: str) -> str:
    return f"marker {name}"
