"""What a crash leaves: the text of faulthandler in the marker, and whether the machine ran out of memory meanwhile.

A program that has enabled faulthandler itself, or handles such signals as a Java machine does, is left as it is, before
and meanwhile: nothing is left of a crash then.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import sys
import weakref
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any

from safecache.session import Part

__all__ = ["Blame", "begin", "end", "host_oom_state", "of_death", "of_exception", "signal_in"]


class Blame(Enum):
    """Whether what was run is to blame, in strikes."""

    NONE = 0
    UNSURE = 1
    SURE = 2


# Of what has run in the thread that crashed, as faulthandler writes it.
_FATAL = re.compile(r"^Fatal Python error: ([^\n]{1,60})", re.MULTILINE)
# Its functions call what is on trial, so that their frames are below it: a block of a with statement leaves none.
_FRAME = "/safecache/trials/first_runs.py"
# What code that does not fit raises, where it raises it itself; any other may be due to what it was given.
_UNFIT = (AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError)
_OF_OTHERS = ("OutOfMemoryError", "CppCompileError", "DistBackendError", "DistNetworkError", "DistStoreError")


class _File:
    """The marker as faulthandler keeps it: who enables that meanwhile has it let go of this one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """As of a file."""
        return self._descriptor

    def flush(self) -> None:
        """As of a file."""


# Bytes; glibc's has 152.
_LARGEST_SIGACTION = 512


class _State:
    def __init__(self) -> None:
        self.trials = 0
        self.file: weakref.ref[_File] | None = None
        # The handler that faulthandler has set, as of sigaction(2).
        self.handler = 0

    def end(self) -> None:
        """Leave faulthandler as it was found."""
        if self.file is not None:
            is_ours, self.file = self.file() is not None and _handler_now() == self.handler, None
            if is_ours:
                faulthandler.disable()

    def in_child(self) -> _State:
        self.end()
        return _State()


_state: Part[_State] = Part(_State, _State.in_child)


def begin(descriptor: int) -> None:
    """Have a crash leave its text in this file until end(), unless that of this program goes elsewhere."""
    with _state.lock:
        state = _state.now
        state.trials += 1
        if state.trials == 1 and not faulthandler.is_enabled() and not _handler_now():
            file = _File(descriptor)
            state.file = weakref.ref(file)
            faulthandler.enable(file, all_threads=False)
            state.handler = _handler_now()


def end() -> None:
    """See begin()."""
    with _state.lock:
        state = _state.now
        state.trials = max(state.trials - 1, 0)  # that of a child was the parent's
        if not state.trials:
            state.end()


def _handler_now() -> int:
    """The address of what handles SIGSEGV, the first field of struct sigaction; 0 for nothing."""
    found = ctypes.create_string_buffer(_LARGEST_SIGACTION)
    _libc().sigaction(signal.SIGSEGV, None, found)
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def host_oom_state() -> dict[str, Any]:
    """The host, and how many processes have been killed there for want of memory since it was started."""
    found = {"host": os.uname().nodename, "killed": -1}
    with suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        found["killed"] = int(file.read().partition(b"\noom_kill ")[2].partition(b"\n")[0])
    return found


def of_death(said: str, then: dict[str, Any]) -> Blame:
    """``said``: what the crash has left in the marker; ``then``: host_oom_state() as it was when the process began."""
    if signal_in(said):
        if _FRAME in said:
            return Blame.SURE
        # In a thread of Python's that ran something else; a crash in one of OpenMP's has no such lines.
        return Blame.NONE if '  File "' in said else Blame.UNSURE
    now = host_oom_state()
    return Blame.NONE if now["host"] == then.get("host") and now["killed"] != then.get("killed") else Blame.UNSURE


def signal_in(said: str) -> str:
    """Such as "Segmentation fault"; "" for a death that has left nothing."""
    found = _FATAL.search(said)
    return found[1] if found is not None and found[1].isprintable() else ""


def of_exception(error: Exception, root: str) -> Blame:
    """Of what has left a first run, or a load; ``root``: where generated code lies."""
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
