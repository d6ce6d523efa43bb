"""The compile service, as used by a process that compiles; it runs as many jobs at once as the process has CPUs."""

from __future__ import annotations

import functools
import math
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import Any, NamedTuple

from safecache.isolation import protocol
from safecache.isolation.connection import Ended, Limits, ServerGoneError, ServiceUnavailable
from safecache.isolation.pool import Pool, UnreadError, Worker
from safecache.session import Part, call_at_exit
from safecache.settings import config

__all__ = [
    "Ending",
    "Limits",
    "Outcome",
    "Service",
    "ServiceUnavailable",
    "current",
    "is_out_of_memory",
    "of_death",
    "of_timeout",
    "quota",
    "workers",
]

# How often a job is sent if its worker, or the server, is gone.
_ATTEMPTS = 5
# Seconds that a worker may take to exit after closing its channel: only then is it known how it ended.
_GRACE = 2.0

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


def of_death(ended: Ended, output: str, memory: int) -> Ending:
    """The ending of a worker that died: of memory if its output says so, or it had nearly used ``memory`` bytes."""
    if _OUT_OF_MEMORY.search(output) or ended.peak >= _FULL * memory:
        return Ending("memory", memory)
    if ended.status is None:
        return Ending("signal", signal.SIGKILL)  # it was sent, and has had no effect yet
    if ended.status < 0:
        return Ending("signal", -ended.status)
    return Ending("exit", ended.status)


def is_out_of_memory(reply: dict[str, Any], output: str) -> bool:
    """Whether a job failed because of its memory limit, not of the kernel; the worker may live on."""
    error = reply.get("error")
    if not isinstance(error, dict):
        return False
    return error.get("type") in _ERRORS or bool(_OUT_OF_MEMORY.search(f"{error.get('message')} {output}"))


class Outcome(NamedTuple):
    """The outcome of a job: either ``reply``, what it returned, or ``ending``, how its worker ended.

    ``stderr``: the beginning and the end of what it wrote to stdout and stderr; ``seconds``: how long it took;
    ``peak``: the largest resident size, in bytes, of an ended worker and its children; 0 if the worker lives on.
    """

    reply: dict[str, Any] | None
    ending: Ending | None
    stderr: str
    seconds: float
    peak: int = 0


class Service:
    """Runs jobs in worker processes, which they may crash, as many at once as there are usable CPUs.

    ``jobs``: the module whose ``run(job, directory)`` runs in a worker; ``imports``: modules that the worker must
    import from the same files as this process. A forked child has a service without a server until it needs one.
    """

    def __init__(
        self,
        jobs: str = "safecache.isolation.job",
        imports: tuple[str, ...] = ("triton",),
        *,
        limits: Limits | None = None,
        size: int | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self.size = size or workers()
        self._pool = Pool(jobs, imports, self._limits)
        self._slots = threading.BoundedSemaphore(self.size)
        _state.now.services.add(self)

    def start(self) -> None:
        """Start the server if there is none, without waiting for it. Never raises: run() says why if that fails."""
        with suppress(ServiceUnavailable):
            self._pool.connect()

    def run(self, job: dict[str, Any], directory: str, *, timeout: float, memory: int) -> Outcome:
        """Have a worker run ``job``, for at most ``timeout`` seconds and ``memory`` bytes in each process.

        It runs with the variables in ``job["environment"]``, or else with those of this process, with a TMPDIR below
        ``directory``. A reply with a true "tainted" ends the worker; so does an "error" if there was output on stderr.
        Raises ServiceUnavailable if no worker is available, or the job is too large to be sent.
        """
        cwd = os.sep
        with suppress(FileNotFoundError):  # it was removed
            cwd = os.getcwd()
        job = {"environment": config.child_environment(), **job}
        message = {"job": job, "directory": os.path.join(cwd, directory), "memory": memory, "cwd": cwd}
        try:
            request = protocol.encode(message)
        except protocol.ProtocolError as error:
            raise ServiceUnavailable(str(error)) from error
        with self._slots:
            for _ in range(_ATTEMPTS):
                worker = self._pool.take()
                with suppress(UnreadError, ServerGoneError):  # the next attempt raises if that persists
                    return self._run(worker, request, timeout, memory)
        raise ServiceUnavailable("one worker after the other is gone before it has read the job")

    def close(self) -> None:
        """End the server and all that it has started.

        Jobs then running raise ServiceUnavailable; a later run() starts another server.
        """
        self._pool.close()

    def forget(self) -> None:
        """In a forked child: drop the parent's server and workers."""
        self._pool = self._pool.in_child()
        self._slots = threading.BoundedSemaphore(self.size)

    def _run(self, worker: Worker, request: bytes, timeout: float, memory: int) -> Outcome:
        """Raises UnreadError or ServerGoneError if the job was not run for that reason, and ServiceUnavailable."""
        started = time.monotonic()
        try:
            answer = worker.ask(request, started + timeout)
            if answer is None:
                reply, resident = None, 0
            elif isinstance(answer.get("reply"), dict) and isinstance(answer.get("resident"), int):
                reply, resident = answer["reply"], answer["resident"]
            else:
                raise protocol.ProtocolError("no reply is in the answer")
        except TimeoutError:
            return self._stopped(worker, of_timeout(timeout), started)
        except protocol.ProtocolError:
            return self._stopped(worker, Ending("exit", os.EX_PROTOCOL), started)
        except BaseException:
            self._kill(worker)
            raise
        seconds = time.monotonic() - started
        if reply is None:
            ended = self._pool.end(worker, grace=_GRACE)
            said = worker.output.take()
            return Outcome(None, of_death(ended, said, memory), said, seconds, ended.peak)
        said = worker.output.take()
        if is_out_of_memory(reply, said):
            return Outcome(None, Ending("memory", memory), said, seconds, self._kill(worker))
        is_worn = worker.jobs >= self._limits.jobs or resident > self._limits.resident
        if is_worn or reply.get("tainted") or ("error" in reply and said):
            return Outcome(reply, None, said, seconds, self._kill(worker))
        self._pool.put_back(worker)
        return Outcome(reply, None, said, seconds)

    def _stopped(self, worker: Worker, ending: Ending, started: float) -> Outcome:
        peak = self._kill(worker)
        return Outcome(None, ending, worker.output.take(), time.monotonic() - started, peak)

    def _kill(self, worker: Worker) -> int:
        """End the worker and return its peak in bytes, 0 if unknown. The pool handles a server that is gone."""
        with suppress(ServerGoneError):
            return self._pool.end(worker).peak
        return 0


class _State:
    def __init__(self) -> None:
        self.services: weakref.WeakSet[Service] = weakref.WeakSet()
        self.current: Service | None = None

    def in_child(self) -> _State:
        for service in list(self.services):
            service.forget()
        self.services.clear()
        self.current = None
        return self


# The same after reset(), for they are in use.
_state: Part[_State] = Part(functools.cache(_State), _State.in_child)


def current() -> Service:
    """Return this process's service. A forked child has its own."""
    with _state.lock:
        state = _state.now
        if state.current is None:
            state.current = Service()
        return state.current


@call_at_exit
def _close_all() -> None:
    for service in list(_state.now.services):
        service.close()


_MOST = 8
_GROUPS, _OWN_GROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"


def workers() -> int:
    """How many workers to have: the usable CPUs, 8 at most, divided by the job's ranks on this host; at least 1."""
    ranks = config.child_environment().get("LOCAL_WORLD_SIZE", "")
    share = int(ranks) if ranks.isascii() and ranks.isdigit() else 1
    allowed, most = len(os.sched_getaffinity(0)), quota()
    usable = allowed if most is None else min(allowed, max(1, int(most)))
    return max(1, min(usable, _MOST) // max(1, share))


def quota() -> float | None:
    """The CPU quota of this process's cgroups, the lowest of them, as a number of CPUs; None without a limit."""
    quotas = (
        limit
        for hierarchy, group in _groups()
        for each in (group, *PurePath(group).parents)
        for limit in _limit(os.path.join(hierarchy, str(each).lstrip("/")))
    )
    return min(quotas, default=None)


def _groups() -> Iterator[tuple[str, str]]:
    """The hierarchies that limit CPU time, and this process's group in each (cgroups(7)).

    In a container, the group itself is often mounted as the top.
    """
    with suppress(OSError), open(_OWN_GROUPS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            number, controllers, group = line.rstrip("\n").split(":", 2)
            if number == "0":
                yield _GROUPS, group
            elif "cpu" in controllers.split(","):
                yield from ((os.path.join(_GROUPS, name), group) for name in ("cpu", controllers))


def _limit(directory: str) -> Iterator[float]:
    with suppress(OSError, ValueError), open(os.path.join(directory, "cpu.max"), encoding="utf-8") as file:
        most, period = map(int, file.read().split())  # ValueError: "max"
        yield most / period
    with (
        suppress(OSError, ValueError),
        open(os.path.join(directory, "cpu.cfs_quota_us"), encoding="utf-8") as quota_file,
        open(os.path.join(directory, "cpu.cfs_period_us"), encoding="utf-8") as period_file,
    ):
        quota, period = int(quota_file.read()), int(period_file.read())
        if quota > 0:
            yield quota / period
