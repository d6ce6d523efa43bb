"""The process between a program and a compile of its graph: it ends that when the program ends, or it takes too long.

It imports no torch and has one thread, so that it can always do so, and fork.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
import shutil
import signal
import time
import traceback
from contextlib import suppress
from typing import NoReturn

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
# Seconds between looks at whether the program lives: another process may hold the other end of its pipe.
_TICK = 0.5
_libc = ctypes.CDLL(None)


def main(asked: int, answered: int, directory: str, seconds: float, parent: int) -> NoReturn:
    """Compile what is ``asked`` for, below ``directory``. The exit status is that of the compile.

    EX_TEMPFAIL for one that took more than so many seconds, 128 and the signal for one that a signal has ended.
    """
    os.nice(19)
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    own = os.getpid()
    worker = os.fork()
    if worker == 0:
        _compile(asked, answered, own)
    with suppress(OSError):  # Both do it: either may be the first that needs it.
        os.setpgid(worker, worker)
    status = os.EX_TEMPFAIL
    try:
        status = _watch(worker, time.monotonic() + seconds, parent)
    finally:
        # With the compilers that it has started, and leaves behind if it crashes.
        with suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(worker, 0)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(status)


def _compile(asked: int, answered: int, guardian: int) -> NoReturn:
    status = os.EX_SOFTWARE
    try:
        os.setpgid(0, 0)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        if os.getppid() == guardian:
            # Not before the fork: it imports torch.
            importlib.import_module("safecache.verification.worker").main(asked, answered)
            status = os.EX_OK
    except BaseException:
        traceback.print_exc()
    finally:
        # No destructor of C++ runs, which may hang.
        os._exit(status)


def _watch(worker: int, end: float, parent: int) -> int:
    """The exit status of the worker once it has ended; EX_TEMPFAIL if it is to be ended."""
    program = select.poll()
    program.register(0, select.POLLIN)
    while time.monotonic() < end and os.getppid() == parent:
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if program.poll(_TICK * 1000):
            break  # nobody writes to it: this is its end
    return os.EX_TEMPFAIL
