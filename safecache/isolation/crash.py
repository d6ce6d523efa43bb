"""How a compile ended in a worker: well, with an error that is Triton's, with a crash, or without a reply."""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from safecache.errors import TritonCompileCrash
from safecache.isolation.connection import Ended
from safecache.settings.units import write_size

__all__ = [
    "STAGES",
    "STAGE_FILE",
    "Crash",
    "Ending",
    "diagnose",
    "is_out_of_memory",
    "make",
    "of_death",
    "of_garbage",
    "of_memory",
    "of_timeout",
]

# What C++, LLVM, glibc, Python and ptxas say when no memory is to be had.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|std::bad_alloc|MemoryError|cannot allocate memory|memory allocation fail|allocation failed",
    re.IGNORECASE,
)
# Code that does not look whether it was given memory ends otherwise, such as with SIGSEGV.
_FULL = 0.9
_ERRORS = ("MemoryError", "builtins.MemoryError")


class Ending(NamedTuple):
    """``how`` and ``number``: "signal" and which; "exit", its status; "timeout" and "memory", the seconds and bytes."""

    how: str
    number: int


def of_timeout(seconds: float) -> Ending:
    """The job was killed because its time was up."""
    return Ending("timeout", math.ceil(seconds))


def of_memory(size: int) -> Ending:
    """The job wanted more memory than its limit."""
    return Ending("memory", size)


def of_death(ended: Ended, output: str, memory: int) -> Ending:
    """The worker was gone. For want of memory, if it said so, or else had as good as all that it was allowed."""
    if _OUT_OF_MEMORY.search(output) or ended.peak >= _FULL * memory:
        return of_memory(memory)
    if ended.status is None:
        return Ending("signal", signal.SIGKILL)  # which was sent, and has had no effect yet
    if ended.status < 0:
        return Ending("signal", -ended.status)
    return Ending("exit", ended.status)


def of_garbage() -> Ending:
    """What the worker replied was none."""
    return Ending("exit", os.EX_PROTOCOL)


def is_out_of_memory(reply: dict[str, Any], output: str) -> bool:
    """Whether a job failed because of its limit, and not of the kernel: it need not end the worker."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return False
    return error.get("type") in _ERRORS or bool(_OUT_OF_MEMORY.search(f"{error.get('message')} {output}"))


# In the order in which they are made, by the suffixes of the files that Triton puts into its cache when each is done.
STAGES = ("source", "glir", "ttir", "ttgir", "llir", "ptx", "amdgcn", "cubin", "hsaco")
# In the job's directory: the one that is being made.
STAGE_FILE = "stage"
# MLIR catches a SIGABRT or SIGSEGV inside a pass, and says no more than that in the error itself.
_PASS_FAILED = "PassManager::run failed"
_SIGNAL_SHOWN = re.compile(
    r"Assertion `.*' failed|LLVM ERROR:|UNREACHABLE executed|A signal was caught|terminate called|Stack dump:",
    re.DOTALL,
)
_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM)


class Crash(NamedTuple):
    """``number``: of the signal, or the exit status; the limit in seconds or bytes, for a timeout or memory."""

    how: str
    number: int
    stage: str

    @property
    def is_of_limit(self) -> bool:
        """Whether it says more of the limit, and of what else the machine did, than of the kernel."""
        return self.how in ("timeout", "memory")

    @property
    def is_by_others(self) -> bool:
        """Whether somebody else killed it, such as the kernel for want of memory: it says nothing of the kernel."""
        return self.how == "signal" and self.number in _BY_OTHERS

    @property
    def is_of_kernel(self) -> bool:
        """Whether nothing but the kernel can have brought it about."""
        return not self.is_of_limit and not self.is_by_others

    @property
    def words(self) -> str:
        """For a person."""
        if self.how == "timeout":
            return f"it took more than {self.number} s"
        if self.how == "memory":
            return f"it took more than {write_size(self.number)} of memory"
        if self.how == "exit":
            return f"the process ended with exit status {self.number}"
        if self.how == "recovered":
            return "MLIR caught a signal in a pass"
        by = ", sent by somebody else, perhaps for want of memory" if self.is_by_others else ""
        return f"{_name(self.number)}{by}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def diagnose(ending: tuple[str, int] | None, error: Mapping[str, Any] | None, stderr: str, stage: str) -> Crash | None:
    """The crash that a compile ended with; None if it ended well, or with an error that is the kernel's author's.

    ``ending``: of the worker, if it has ended; ``error``: as the job's reply has it.
    """
    if ending is not None:
        return Crash(*ending, stage)
    if error is None or _PASS_FAILED not in error["message"] or not _SIGNAL_SHOWN.search(stderr):
        return None
    return Crash("recovered", 0, stage)


def make(message: str, attributes: Mapping[str, Any]) -> TritonCompileCrash:
    """What to raise; where Triton is installed, an error that autotuners skip."""
    return _raised()(message, **attributes)


@functools.cache
def _raised() -> type[TritonCompileCrash]:
    try:
        triton = importlib.import_module("triton.runtime.errors")
        bases = (TritonCompileCrash, triton.PTXASError, triton.OutOfResources)
    except (ImportError, AttributeError):
        return TritonCompileCrash

    def reduce(self: TritonCompileCrash) -> tuple[Any, ...]:
        names = ("how", "signal", "stage", "kernel", "config", "report")
        return make, (str(self), {name: getattr(self, name) for name in names})

    # As those who catch its bases print them.
    members = {"error_message": property(str), "required": 0, "limit": 0, "name": "Triton's compiler"}
    members |= {
        "__reduce__": reduce,
        "__doc__": TritonCompileCrash.__doc__,
        "__module__": TritonCompileCrash.__module__,
    }
    return type(TritonCompileCrash.__name__, bases, members)
