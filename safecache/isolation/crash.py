"""How a compile ended in a worker: well, with an error of Triton's, with a crash, or without a reply."""

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

# What C++, LLVM, glibc, Python and ptxas print when they are out of memory.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|std::bad_alloc|MemoryError|cannot allocate memory|memory allocation fail|allocation failed",
    re.IGNORECASE,
)
# Share of the limit: code that does not check its allocations ends in other ways, such as with SIGSEGV.
_FULL = 0.9
_ERRORS = ("MemoryError", "builtins.MemoryError")


class Ending(NamedTuple):
    """``how`` and ``number``: "signal" and which, "exit" and status, "timeout" and seconds, "memory" and bytes."""

    how: str
    number: int


def of_timeout(seconds: float) -> Ending:
    """The ending of a job that was killed after ``seconds``."""
    return Ending("timeout", math.ceil(seconds))


def of_memory(size: int) -> Ending:
    """The ending of a job that exceeded its limit of ``size`` bytes."""
    return Ending("memory", size)


def of_death(ended: Ended, output: str, memory: int) -> Ending:
    """The ending of a worker that died: of memory if its output says so, or it had nearly used ``memory`` bytes."""
    if _OUT_OF_MEMORY.search(output) or ended.peak >= _FULL * memory:
        return of_memory(memory)
    if ended.status is None:
        return Ending("signal", signal.SIGKILL)  # it was sent, and has had no effect yet
    if ended.status < 0:
        return Ending("signal", -ended.status)
    return Ending("exit", ended.status)


def of_garbage() -> Ending:
    """The ending of a worker whose reply was invalid."""
    return Ending("exit", os.EX_PROTOCOL)


def is_out_of_memory(reply: dict[str, Any], output: str) -> bool:
    """Whether a job failed because of its memory limit, not of the kernel; the worker may live on."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return False
    return error.get("type") in _ERRORS or bool(_OUT_OF_MEMORY.search(f"{error.get('message')} {output}"))


# The stages in order, by the suffix of the file that Triton stores when each is done.
STAGES = ("source", "glir", "ttir", "ttgir", "llir", "ptx", "amdgcn", "cubin", "hsaco")
# The file in the job's directory that names the current stage.
STAGE_FILE = "stage"
# MLIR catches a SIGABRT or SIGSEGV inside a pass; the error itself says only this.
_PASS_FAILED = "PassManager::run failed"
_SIGNAL_SHOWN = re.compile(
    r"Assertion `.*' failed|LLVM ERROR:|UNREACHABLE executed|A signal was caught|terminate called|Stack dump:",
    re.DOTALL,
)
_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM)


class Crash(NamedTuple):
    """``number``: the signal or exit status; for a timeout or memory, the limit in seconds or bytes."""

    how: str
    number: int
    stage: str

    @property
    def is_of_limit(self) -> bool:
        """Whether it depends on a limit and the machine's load, rather than on the kernel alone."""
        return self.how in ("timeout", "memory")

    @property
    def is_by_others(self) -> bool:
        """Whether another process or the OOM killer killed it: that says nothing about the Triton kernel."""
        return self.how == "signal" and self.number in _BY_OTHERS

    @property
    def is_of_kernel(self) -> bool:
        """Whether only the Triton kernel can have caused it."""
        return not self.is_of_limit and not self.is_by_others

    @property
    def words(self) -> str:
        """A description for a person."""
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
    """The crash that a compile ended with; None if it ended well, or with an error of the kernel's author.

    ``ending``: how the worker ended, None if it lives on; ``error``: the one in the job's reply, if any.
    """
    if ending is not None:
        return Crash(*ending, stage)
    if error is None or _PASS_FAILED not in error["message"] or not _SIGNAL_SHOWN.search(stderr):
        return None
    return Crash("recovered", 0, stage)


def make(message: str, attributes: Mapping[str, Any]) -> TritonCompileCrash:
    """The error to raise; if Triton is installed, one that its autotuner skips."""
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

    # What handlers of the base classes print.
    members = {"error_message": property(str), "required": 0, "limit": 0, "name": "Triton's compiler"}
    members |= {
        "__reduce__": reduce,
        "__doc__": TritonCompileCrash.__doc__,
        "__module__": TritonCompileCrash.__module__,
    }
    return type(TritonCompileCrash.__name__, bases, members)
