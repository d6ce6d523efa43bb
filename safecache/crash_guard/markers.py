"""The marker of a process: a locked file, in the cache, that says what it is running for the first time.

The kernel releases the lock when the process dies, however it dies (flock(2)), and what was written stays. That is done
by pwrite(2): a mapping would save that call, but end the process (SIGBUS) where the disk is full or fails. Who can
write to the cache can leave any marker there: only what this user's own key has sealed is believed of one.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import fcntl
import os
import random
import re
import secrets
import signal
import stat
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum
from functools import cache
from io import FileIO
from typing import Any, NamedTuple

from safecache.fs import filesystem, folders
from safecache.fs.folders import Folder
from safecache.places import metadata
from safecache.reporting import waits
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.signing import side_records

__all__ = [
    "Blame",
    "Death",
    "Marker",
    "begin",
    "end",
    "find_home",
    "find_signal",
    "get_own_marker",
    "judge_death",
    "judge_exception",
    "open_markers",
    "read_oom_state",
    "take_deaths",
]

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
    """Death of a process, as its marker states. ``began``: see own(). ``running``: the files of each guarded run.

    ``said``: what faulthandler has written; ``around``: see host_oom_state().
    """

    pid: int
    began: float
    around: dict[str, Any]
    running: list[list[str]]
    said: str


class Marker:
    """Marker of this process, which holds its lock."""

    def __init__(self, root: str, name: str, descriptor: int) -> None:
        self.root, self.name, self.descriptor = root, name, descriptor
        self._free = list(range(_SLOTS))

    def arm(self, names: list[str]) -> int | None:
        """Write that these files are being run. Return the slot to disarm() then; None if too much is run at once."""
        with _own.lock:
            slot = self._free.pop(0) if self._free else None
        if slot is not None:
            self.rearm(slot, names)
        return slot

    def rearm(self, slot: int, names: list[str]) -> None:
        """Write which files the run in this ``slot`` has now. What has no room is left out: the entries come first."""
        for number in (_MOST_NAMES, _MOST_NAMES // 4, 4):
            sealed = side_records.seal_record(_make_subject(self.name), {"names": names[:number]})
            if sealed is not None and len(sealed) <= _SLOT - _LENGTH:
                self._write(_frame_record(sealed), slot)
                break

    def disarm(self, slot: int) -> None:
        """Clear this ``slot``, as its run has ended, well or by an exception."""
        self._write(b"\n".rjust(_LENGTH), slot)
        with _own.lock:
            self._free.append(slot)

    def _write(self, content: bytes, slot: int) -> None:
        with suppress(OSError):  # a full disk: a death is then not noticed, or by another's crash
            os.pwrite(self.descriptor, content, _HEADER + slot * _SLOT)

    def remove(self) -> None:
        """Unlink and unlock the marker, at the end of this process."""
        with suppress(OSError), open_markers(self.root) as folder:
            folder.unlink(self.name)
        self.close()

    def close(self) -> None:
        """Close the descriptor. In a child, which has it from its parent, the parent's lock stays."""
        descriptor, self.descriptor = self.descriptor, -1
        with suppress(OSError):
            filesystem.close(descriptor)


class _Own(dict[str, "Marker | None"]):
    """Markers of this process, by place."""

    def end(self) -> None:
        for marker in filter(None, list(self.values())):
            marker.remove()
        self.clear()

    def renew_in_child(self) -> _Own:
        # The parent's trials are not the child's; and the lock lasts as long as any process has its descriptor.
        for marker in filter(None, list(self.values())):
            marker.close()
        self.clear()
        return _Own()


_own: Part[_Own] = Part(_Own, _Own.renew_in_child)


def find_home(root: str) -> str:
    """Return where the markers of the cache ``root`` are: in it or, if it cannot be written, among the user's files."""
    mine = config.current().config_home
    if mine is None or not os.path.isdir(root) or os.access(root, os.W_OK, effective_ids=True):
        return root
    return metadata.find_user_path(mine, root)


def open_markers(place: str, *, make: bool = False) -> AbstractContextManager[Folder]:
    """Open the folder of markers in ``place``: see home(). Raises OSError."""
    return folders.open_subdirectory(place, [metadata.FOLDER, metadata.TRIALS], make=make)


def get_own_marker(place: str, began: float) -> Marker | None:
    """Return this process's marker in ``place``, made on first use; None, for good, where none can be made.

    ``began``: when it looked at the strikes of that cache, in seconds since the epoch. Unpacked artifacts are caches of
    their own: the first few caches of a process have a marker, which stays open.
    """
    own = _own.now
    if place not in own and len(own) < _MOST_OWN:
        with _own.lock:
            if place not in own:
                own[place] = _make_marker(place, began)
                call_at_exit(own.end)
    return own.get(place)


def _make_marker(place: str, began: float) -> Marker | None:
    name = f"run-{os.getpid()}-{secrets.token_hex(6)}"
    header = {"pid": os.getpid(), "began": began, "around": read_oom_state()}
    sealed = side_records.seal_record(_make_subject(name), header)
    if sealed is None:
        return None  # no later process could believe it
    try:
        if not os.path.isdir(place):
            os.makedirs(place, mode=0o700, exist_ok=True)
        with open_markers(place, make=True) as folder:
            descriptor = folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    marker = Marker(place, name, descriptor)
    try:
        if filesystem.is_scarce(descriptor):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        # An empty one is let be by others, until it is locked.
        filesystem.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.pwrite(descriptor, _frame_record(sealed), 0)
        os.lseek(descriptor, _EVIDENCE, os.SEEK_SET)
    except OSError:
        marker.remove()
        return None
    return marker


def take_deaths(place: str) -> Iterator[Death]:
    """Yield the deaths of processes whose markers are in ``place``, each to one caller only; remove the markers.

    A caller holds the marker while it looks. Others wait for that, waits.UNPROVEN seconds in all. Raises OSError.
    """
    with open_markers(place) as folder:
        names = [name for name in folder.list_names() if _NAME.fullmatch(name)]
        mine = {marker.name for marker in _own.now.values() if marker is not None}
        deadline = time.monotonic() + waits.get_remaining_seconds(waits.UNPROVEN)
        for name in random.sample(names, min(len(names), _MOST)):
            if name not in mine:
                with suppress(OSError), _hold_marker(folder, name, deadline) as descriptor:
                    try:
                        found = _parse_death(name, filesystem.pread(descriptor, _EVIDENCE + _LONGEST_EVIDENCE, 0))
                        if found is not None:
                            yield found
                    finally:  # whatever becomes of the judgement, or each start would come to the same
                        folder.unlink(name)


@contextmanager
def _hold_marker(folder: Folder, name: str, deadline: float) -> Iterator[int]:
    """Yield the descriptor of a dead process's marker, locked for this block, after a wait for another's look.

    ``deadline``: of the wait, by time.monotonic(). Raises OSError if it is not to be judged.
    """
    descriptor = folder.open(name, os.O_RDWR)
    try:
        status = filesystem.fstat(descriptor)
        theirs = status.st_uid != os.geteuid() and not config.current().shared
        if not stat.S_ISREG(status.st_mode) or not status.st_size or theirs:
            raise OSError(errno.EPERM, "no marker of ours")
        if not filesystem.try_lock(descriptor):
            if filesystem.try_lock(descriptor, fcntl.LOCK_SH):  # who looks at one excludes all others
                filesystem.flock(descriptor, fcntl.LOCK_UN)
                raise BlockingIOError(errno.EAGAIN, "its process lives")
            left = deadline - time.monotonic()
            held, waited = waits.wait(lambda _: filesystem.try_lock(descriptor) or None, left, pauses=_PAUSES)
            waits.charge(waited, in_vain=True)
            if not held:
                raise BlockingIOError(errno.EAGAIN, "another process looks at it")
        if not os.path.samestat(folder.get_status(name), status):
            raise FileNotFoundError(errno.ENOENT, "another process has judged it")
        yield descriptor
    finally:
        filesystem.close(descriptor)


def _parse_death(name: str, unverified: bytes) -> Death | None:
    """Return the death in a marker; None if this user's own key has not sealed it, as after a kill while it wrote."""
    header = _read_slot(name, unverified[:_HEADER])
    if header is None:
        return None
    slots = [_read_slot(name, unverified[at : at + _SLOT]) for at in range(_HEADER, _EVIDENCE, _SLOT)]
    running = [each["names"][:_MOST_NAMES] for each in slots if each is not None and "names" in each]
    said = unverified[_EVIDENCE:].decode(errors="replace")
    return Death(header["pid"], header["began"], header["around"], running, said)


def _frame_record(sealed: bytes) -> bytes:
    return b"%*d\n" % (_LENGTH - 1, len(sealed)) + sealed


def _read_slot(name: str, unverified: bytes) -> dict[str, Any] | None:
    length = unverified[:_LENGTH].strip()
    if not length.isdigit():
        return None
    return side_records.open_record(unverified[_LENGTH : _LENGTH + int(length)], _make_subject(name), own=True)


def _make_subject(name: str) -> str:
    return f"marker {name}"


class Blame(Enum):
    """Verdict on what was run, by how many strikes it deserves."""

    NONE = 0
    UNSURE = 1
    SURE = 2


# Of what has run in the thread that crashed, as faulthandler writes it.
_FATAL = re.compile(r"^Fatal Python error: ([^\n]{1,60})", re.MULTILINE)
# Its functions call what is on trial, so that their frames are below it: a block of a with statement leaves none.
_FRAME = "/safecache/crash_guard/__init__.py"
# What code that does not fit raises, where it raises it itself; any other may be due to what it was given.
_UNFIT = (AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError)
_OF_OTHERS = ("OutOfMemoryError", "CppCompileError", "DistBackendError", "DistNetworkError", "DistStoreError")


_libc = cache(ctypes.CDLL)
# Bytes; glibc's has 152.
_LARGEST_SIGACTION = 512


class _State:
    def __init__(self) -> None:
        self.trials = 0
        # The marker as faulthandler keeps it: who enables that meanwhile has it let go of this one.
        self.file: weakref.ref[FileIO] | None = None
        # The handler that faulthandler has set, as of sigaction(2).
        self.handler = 0

    def end(self) -> None:
        """Leave faulthandler as it was found."""
        if self.file is not None:
            is_ours, self.file = self.file() is not None and _find_handler() == self.handler, None
            if is_ours:
                faulthandler.disable()

    def renew_in_child(self) -> _State:
        self.end()
        return _State()


_state: Part[_State] = Part(_State, _State.renew_in_child)


def begin(descriptor: int) -> None:
    """Have a crash leave its text in this file until end(), unless the program handles crashes itself."""
    with _state.lock:
        state = _state.now
        state.trials += 1
        if state.trials == 1 and not faulthandler.is_enabled() and not _find_handler():
            file = FileIO(descriptor, "wb", closefd=False)
            state.file = weakref.ref(file)
            faulthandler.enable(file, all_threads=False)
            state.handler = _find_handler()


def end() -> None:
    """End what begin() began: leave faulthandler as it was, once no guarded run is left."""
    with _state.lock:
        state = _state.now
        state.trials = max(state.trials - 1, 0)  # that of a child was the parent's
        if not state.trials:
            state.end()


def _find_handler() -> int:
    """Return the address of SIGSEGV's handler, the first field of struct sigaction; 0 for none."""
    found = ctypes.create_string_buffer(_LARGEST_SIGACTION)
    _libc(None).sigaction(signal.SIGSEGV, None, found)
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


def read_oom_state() -> dict[str, Any]:
    """Return the host's name, and how many processes its OOM killer has killed since boot (-1 if unknown)."""
    found = {"host": os.uname().nodename, "killed": -1}
    with suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        found["killed"] = int(file.read().partition(b"\noom_kill ")[2].partition(b"\n")[0])
    return found


def judge_death(said: str, then: dict[str, Any]) -> Blame:
    """Judge a death by what the crash has ``said`` in the marker, and by host_oom_state() at the process's start."""
    if find_signal(said):
        if _FRAME in said:
            return Blame.SURE
        # In a thread of Python's that ran something else; a crash in one of OpenMP's has no such lines.
        return Blame.NONE if '  File "' in said else Blame.UNSURE
    now = read_oom_state()
    return Blame.NONE if now["host"] == then.get("host") and now["killed"] != then.get("killed") else Blame.UNSURE


def find_signal(said: str) -> str:
    """Return the error that faulthandler names, such as "Segmentation fault", or "" if it has left nothing."""
    found = _FATAL.search(said)
    return found[1] if found is not None and found[1].isprintable() else ""


def judge_exception(error: Exception, root: str) -> Blame:
    """Judge an exception that has left a first run, or a load. ``root``: where generated code is stored."""
    names = {each.__name__ for each in type(error).__mro__}
    if isinstance(error, MemoryError) or names.intersection(_OF_OTHERS):
        return Blame.NONE
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    if where is not None and where.tb_frame.f_code.co_filename.startswith(os.path.join(root, "")):
        return Blame.SURE if isinstance(error, _UNFIT) else Blame.UNSURE
    # A library that cannot be loaded from where it lies, a disk.
    return Blame.NONE if isinstance(error, (OSError, ImportError)) else Blame.UNSURE
