"""The compile service, as used by a process that compiles: what is wanted of it, and how that ended."""

from __future__ import annotations

import functools
import hashlib
import itertools
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
from safecache.isolation.connection import (
    Connection,
    Ended,
    ServerGoneError,
    ServerLimits,
    ServiceUnavailable,
    UnreadError,
    Worker,
)
from safecache.reporting.waits import Breaker
from safecache.session import Part, call_at_exit
from safecache.settings import config, settings

__all__ = [
    "Ending",
    "Limits",
    "Outcome",
    "Request",
    "ServerLimits",
    "Service",
    "ServiceUnavailable",
    "classify_death",
    "count_workers",
    "current_limits",
    "get_service",
    "is_out_of_memory",
    "make_timeout_ending",
    "read_quota",
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
# A worker is no longer used so many seconds before it would end for lack of use.
_MARGIN = 5.0
# Seconds without another try, once a server could not be started or has ended twice in a row.
_PAUSE = 600.0
_MOST_DEATHS = 2
# Share of the limit: code that does not check its allocations ends in other ways, such as with SIGSEGV.
_FULL = 0.9
_ERRORS = ("MemoryError", "builtins.MemoryError")

# Seconds. A sound compile of a large kernel takes minutes at most. While autotuning, a slow one is not worth the wait:
# there are other configurations to choose from.
_TIMEOUT, _TIMEOUT_WHILE_TUNING = 600.0, 120.0
_MOST_MEMORY = 16 * 10**9
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


class Ending(NamedTuple):
    """``how`` and ``number``: "signal" and which, "exit" and status, "timeout" and seconds, "memory" and bytes."""

    how: str
    number: int


def make_timeout_ending(seconds: float) -> Ending:
    """The ending of a job that was killed after ``seconds``."""
    return Ending("timeout", math.ceil(seconds))


def classify_death(ended: Ended, output: str, memory: int) -> Ending:
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
    import from the same files as this process. Workers are forked on demand, and reused while they are fit. A forked
    child has a service without a server until it needs one.
    """

    def __init__(
        self,
        jobs: str = "safecache.isolation.job",
        imports: tuple[str, ...] = ("triton",),
        *,
        limits: ServerLimits | None = None,
        size: int | None = None,
    ) -> None:
        self._jobs = jobs
        self._imports = imports
        self._limits = limits or ServerLimits()
        self.size = size or count_workers()
        self._begin()
        _state.now.services.add(self)

    def _begin(self) -> None:
        self._slots = threading.BoundedSemaphore(self.size)
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._idle: list[Worker] = []
        self._in_use = 0
        self._numbers = itertools.count(1)
        self._deaths = 0
        self._refusal = ""
        self._failing = Breaker()

    def start(self) -> None:
        """Start the server if there is none, without waiting for it. Never raises: run() says why if that fails."""
        with suppress(ServiceUnavailable):
            self.connect()

    def run(self, job: dict[str, Any], directory: str, *, timeout: float, memory: int) -> Outcome:
        """Have a worker run ``job``, for at most ``timeout`` seconds and ``memory`` bytes in each process.

        It runs with the variables in ``job["environment"]``, or else with those of this process, with a TMPDIR below
        ``directory``. A reply with a true "tainted" ends the worker; so does an "error" if there was output on stderr.
        Raises ServiceUnavailable if no worker is available, or the job is too large to be sent.
        """
        cwd = os.sep
        with suppress(FileNotFoundError):  # it was removed
            cwd = os.getcwd()
        job = {"environment": config.copy_environment(), **job}
        message = {"job": job, "directory": os.path.join(cwd, directory), "memory": memory, "cwd": cwd}
        try:
            request = protocol.encode(message)
        except protocol.ProtocolError as error:
            raise ServiceUnavailable(str(error)) from error
        with self._slots:
            for _ in range(_ATTEMPTS):
                worker = self._take_worker()
                try:
                    return self._run_job(worker, request, timeout, memory)
                except (UnreadError, ServerGoneError):
                    continue  # the next attempt raises if that persists
                finally:
                    with self._lock:
                        self._in_use -= 1
        raise ServiceUnavailable("one worker after the other is gone before it has read the job")

    def close(self) -> None:
        """End the server and all that it has started.

        Jobs then running raise ServiceUnavailable; a later run() starts another server.
        """
        with self._lock:
            connection = self._connection
            self._drop()
        if connection is not None:
            connection.is_given_up = True
            connection.close()

    def forget(self) -> None:
        """Drop the parent's server and workers, in a forked child."""
        if self._connection is not None:
            self._connection.forget()
        self._begin()

    def _run_job(self, worker: Worker, request: bytes, timeout: float, memory: int) -> Outcome:
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
            return self._stop_worker(worker, make_timeout_ending(timeout), started)
        except protocol.ProtocolError:
            return self._stop_worker(worker, Ending("exit", os.EX_PROTOCOL), started)
        except BaseException:
            self._kill(worker)
            raise
        seconds = time.monotonic() - started
        if reply is None:
            ended = self._end(worker, _GRACE)
            said = worker.output.take()
            return Outcome(None, classify_death(ended, said, memory), said, seconds, ended.peak)
        said = worker.output.take()
        if is_out_of_memory(reply, said):
            return Outcome(None, Ending("memory", memory), said, seconds, self._kill(worker))
        is_worn = worker.jobs >= self._limits.jobs or resident > self._limits.resident
        if is_worn or reply.get("tainted") or ("error" in reply and said):
            return Outcome(reply, None, said, seconds, self._kill(worker))
        self._put_back(worker)
        return Outcome(reply, None, said, seconds)

    def _stop_worker(self, worker: Worker, ending: Ending, started: float) -> Outcome:
        peak = self._kill(worker)
        return Outcome(None, ending, worker.output.take(), time.monotonic() - started, peak)

    def _kill(self, worker: Worker) -> int:
        """End the worker and return its peak in bytes, 0 if unknown."""
        with suppress(ServerGoneError):  # _lost() has handled it
            return self._end(worker, 0.0).peak
        return 0

    def connect(self) -> Connection:
        """The connection to the server, started if there is none, without waiting. Raises ServiceUnavailable."""
        with self._lock:
            if self._failing.get_seconds_left("server"):
                raise ServiceUnavailable(self._refusal)
            if self._connection is not None and not self._in_use and self._connection.is_stale():
                self._connection.close()
                self._drop()
            if self._connection is None:
                try:
                    self._connection = Connection(self._jobs, self._imports, self._limits)
                except ServiceUnavailable as error:
                    self._refuse(str(error))
                    raise
            return self._connection

    def _take_worker(self) -> Worker:
        """A worker, counted as in use. Raises ServiceUnavailable."""
        while True:
            connection = self.connect()
            try:
                self._wait_for(connection)
                worker = self._take_idle_worker(connection) or Worker(connection, next(self._numbers))
            except ServerGoneError as error:
                self._handle_loss(connection, error)
                continue
            with self._lock:
                self._in_use += 1
            return worker

    def _wait_for(self, connection: Connection) -> None:
        try:
            connection.wait_until_ready()
        except ServiceUnavailable as error:
            with self._lock:
                self._refuse(str(error))
            raise

    def _put_back(self, worker: Worker) -> None:
        """Keep a worker that has done its job and can do another."""
        with self._lock:
            self._deaths = 0
            if worker.connection is self._connection:
                worker.connection.note_use()
                self._idle.append(worker)
                return
        worker.let_go()

    def _take_idle_worker(self, connection: Connection) -> Worker | None:
        """The idle worker last used, or None; ends those that are stale. Raises ServerGoneError."""
        idle = self._limits.worker_idle
        oldest = time.monotonic() - (idle - min(_MARGIN, idle / 2))
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None or (worker.connection is connection and worker.used > oldest):
                return worker
            self._end(worker, 0.0)

    def _end(self, worker: Worker, grace: float) -> Ended:
        """End a worker, killed if it has not ended by itself after ``grace`` seconds; return how it ended.

        Raises ServerGoneError, after that is dealt with; ServiceUnavailable if the service was closed meanwhile.
        """
        try:
            ended = worker.end(grace)
        except ServerGoneError as error:
            self._handle_loss(worker.connection, error)
            raise
        self._deaths = 0
        return ended

    def _handle_loss(self, connection: Connection, error: ServerGoneError) -> None:
        """Drop a lost server; connect() starts another, unless two were lost in a row. Raises ServiceUnavailable."""
        with self._lock:
            if connection.is_given_up:
                raise ServiceUnavailable("the compile service was closed") from error
            if connection is not self._connection:
                return  # another thread has said so
            self._drop()
            self._deaths += 1
            if self._deaths >= _MOST_DEATHS:
                self._refuse(f"the compile server has ended twice in a row: {error}")

    def _refuse(self, reason: str) -> None:
        self._connection = None
        self._refusal = reason
        self._failing.leave_alone("server", _PAUSE)
        self._deaths = 0

    def _drop(self) -> None:
        self._connection = None
        while self._idle:
            self._idle.pop().let_go()


class _State:
    def __init__(self) -> None:
        self.services: weakref.WeakSet[Service] = weakref.WeakSet()
        self.current: Service | None = None

    def forget_services(self) -> _State:
        for service in list(self.services):
            service.forget()
        self.services.clear()
        self.current = None
        return self


# The same after reset(), for they are in use.
_state: Part[_State] = Part(functools.cache(_State), _State.forget_services)


def get_service() -> Service:
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


def count_workers() -> int:
    """How many workers to have: the usable CPUs, 8 at most, divided by the job's ranks on this host; at least 1."""
    ranks = config.copy_environment().get("LOCAL_WORLD_SIZE", "")
    share = int(ranks) if ranks.isascii() and ranks.isdigit() else 1
    allowed, most = len(os.sched_getaffinity(0)), read_quota()
    usable = allowed if most is None else min(allowed, max(1, int(most)))
    return max(1, min(usable, _MOST) // max(1, share))


def read_quota() -> float | None:
    """Return the lowest CPU quota of this process's cgroups, as a number of CPUs; None without a limit."""
    quotas = (
        limit
        for hierarchy, group in _iter_groups()
        for each in (group, *PurePath(group).parents)
        for limit in _iter_limits(os.path.join(hierarchy, str(each).lstrip("/")))
    )
    return min(quotas, default=None)


def _iter_groups() -> Iterator[tuple[str, str]]:
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


def _iter_limits(directory: str) -> Iterator[float]:
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


class Limits(NamedTuple):
    """The limits of a compile: ``timeout`` in seconds, ``memory`` in bytes."""

    timeout: float
    memory: int


class Request(NamedTuple):
    """Lookup that triton.compile() is about to make in the cache ``root``, by the cache key ``key``.

    ``metadata``: the name of the file that the lookup is for, "" if it is unknown.
    """

    source: Any
    backend: Any
    options: Any
    key: str
    metadata: str
    root: str
    limits: Limits

    @property
    def hash(self) -> str:
        """SHA-256 of the key, after which the kernel's directory is named."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def current_limits(*, tuning: bool) -> Limits:
    """The limits by the current settings. ``tuning``: the compile is one of several configurations of a kernel."""
    chosen = config.current()
    timeout = chosen.compile_timeout or (_TIMEOUT_WHILE_TUNING if tuning else _TIMEOUT)
    return Limits(timeout, chosen.compile_memory or max(settings.LEAST_COMPILE_MEMORY, _halve_memory()))


@functools.cache
def _halve_memory() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Beyond a container's limit, the OOM killer may hit a process other than the worker. Without a limit: "max".
    with suppress(OSError, ValueError), open(_CGROUP_LIMIT, encoding="utf-8") as file:
        memory = min(memory, int(file.read()))
    return min(_MOST_MEMORY, memory // 2)
