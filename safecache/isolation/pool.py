"""The workers of one process: forked on demand, reused while they are fit, else replaced; and their output."""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any

from safecache.isolation import protocol
from safecache.isolation.connection import (
    Connection,
    Ended,
    Limits,
    ServerGoneError,
    ServiceUnavailable,
    close,
    pipe,
    socketpair,
)
from safecache.reporting.waits import Breaker

__all__ = ["MOST_BYTES", "Output", "Pool", "UnreadError", "Worker"]


class UnreadError(Exception):
    """The worker was gone before it had read the job, or cannot be reached: the job can be sent again."""


class Worker:
    """A worker, forked by the constructor, which raises ServiceUnavailable or ServerGoneError. Not thread-safe."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.jobs = 0
        self.used = time.monotonic()
        self._number = number
        try:
            with ExitStack() as undone:
                self._channel, channel = socketpair()
                undone.callback(close, self._channel, channel)
                self._pipe, written = pipe()
                undone.callback(close, self._pipe, written)
                self._pid = connection.fork(number, channel.fileno(), written.fileno())
                undone.pop_all()
        except OSError as error:
            raise ServiceUnavailable(f"no worker can be started: {error}") from error
        close(channel, written)
        self._since = _start_time(self._pid)
        self.output = Output(self._pipe.fileno())

    def ask(self, request: bytes, deadline: float) -> dict[str, Any] | None:
        """Send ``request`` and return the reply; None if the worker ended instead. ``deadline``: by time.monotonic().

        Raises TimeoutError, UnreadError, and ProtocolError for an invalid reply.
        """
        self.jobs += 1
        self.output.drain()
        self.output.take()
        try:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            self._channel.sendall(request)
            reply = self._receive(deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise UnreadError from error
        self.output.drain()
        self.used = time.monotonic()
        return reply

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._pipe, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = [descriptor for descriptor, _ in waiting.poll(max(0.0, left * 1000))]
            if self._channel.fileno() in ready:
                # One more second: this process itself may have been stopped until now.
                return protocol.receive(self._channel, max(deadline, time.monotonic() + 1))
            if left <= 0:
                raise TimeoutError
            if ready and not self.output.read():
                waiting.unregister(self._pipe)

    def end(self, grace: float) -> Ended:
        """End the worker and return how it ended; it is killed with its children if alive after ``grace`` seconds.

        Raises ServerGoneError, after killing its process group all the same.
        """
        try:
            ended = self.connection.end(self._number, grace)
            self.output.drain()
            return ended
        except ServerGoneError:
            # Kill the children that the worker leaves behind when it ends together with its server. As long as a
            # member of the group lives, its number is not reused.
            if _start_time(self._pid) in (None, self._since):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGKILL)
            raise
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close our ends of its channel and pipe, on which an idle worker ends."""
        close(self._channel, self._pipe)


def _start_time(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


# A worker is no longer used so many seconds before it would end for lack of use.
_MARGIN = 5.0
# Seconds without another try, once a server could not be started or has ended twice in a row.
_PAUSE = 600.0
_MOST_DEATHS = 2


class Pool:
    """The workers and their server; ``jobs``, ``imports`` and ``limits`` as for Service. Thread-safe."""

    def __init__(self, jobs: str, imports: tuple[str, ...], limits: Limits) -> None:
        self._jobs = jobs
        self._imports = imports
        self._limits = limits
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._idle: list[Worker] = []
        self._in_use = 0
        self._numbers = itertools.count(1)
        self._deaths = 0
        self._refusal = ""
        self._failing = Breaker()

    def connect(self) -> Connection:
        """The connection to the server, started if there is none, without waiting. Raises ServiceUnavailable."""
        with self._lock:
            if self._failing.seconds_left("server"):
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

    def take(self) -> Worker:
        """A worker, which the caller must put back or end. Raises ServiceUnavailable."""
        while True:
            connection = self.connect()
            try:
                self._wait_for(connection)
                worker = self._idle_worker(connection) or Worker(connection, next(self._numbers))
            except ServerGoneError as error:
                self._lost(connection, error)
                continue
            with self._lock:
                self._in_use += 1
            return worker

    def put_back(self, worker: Worker) -> None:
        """Return a worker that has done its job and can do another."""
        with self._lock:
            self._in_use -= 1
            self._deaths = 0
            if worker.connection is self._connection:
                worker.connection.is_used()
                self._idle.append(worker)
                return
        worker.let_go()

    def end(self, worker: Worker, *, grace: float = 0.0) -> Ended:
        """End a worker, killed if it has not ended by itself after ``grace`` seconds; return how it ended. Raises
        ServerGoneError, after that is dealt with; ServiceUnavailable if the pool was closed meanwhile."""
        with self._lock:
            self._in_use -= 1
        return self._end(worker, grace)

    def close(self) -> None:
        """End the server and all that it has started, workers in use included. A later connect() starts another."""
        with self._lock:
            connection = self._connection
            self._drop()
        if connection is not None:
            connection.is_given_up = True
            connection.close()

    def in_child(self) -> Pool:
        """A pool for a forked child, which starts without a server."""
        if self._connection is not None:
            self._connection.forget()
        return Pool(self._jobs, self._imports, self._limits)

    def _wait_for(self, connection: Connection) -> None:
        try:
            connection.wait_until_ready()
        except ServiceUnavailable as error:
            with self._lock:
                self._refuse(str(error))
            raise

    def _refuse(self, reason: str) -> None:
        self._connection = None
        self._refusal = reason
        self._failing.leave_alone("server", _PAUSE)
        self._deaths = 0

    def _lost(self, connection: Connection, error: ServerGoneError) -> None:
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

    def _drop(self) -> None:
        self._connection = None
        while self._idle:
            self._idle.pop().let_go()

    def _idle_worker(self, connection: Connection) -> Worker | None:
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
        try:
            ended = worker.end(grace)
        except ServerGoneError as error:
            self._lost(worker.connection, error)
            raise
        self._deaths = 0
        return ended


# Kept from the beginning of the output, and as much from its end.
MOST_BYTES = 64 << 10

_PIPE = 64 << 10
# Once a job has written this much, at most _PIPE bytes are read per _WRITE_PAUSE: a flood slows down its writer.
_FLOOD = 1 << 20
_WRITE_PAUSE = 0.01


class Output:
    """The output of one worker, read from the pipe ``descriptor``, which does not block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def read(self) -> bool:
        """Read what is in the pipe, at most its capacity; False at its end."""
        if self._size > _FLOOD:
            time.sleep(_WRITE_PAUSE)
        try:
            piece = os.read(self._descriptor, _PIPE)
        except BlockingIOError:
            return True
        except OSError:  # other code has closed it, such as with all descriptors unknown to it
            return False
        self._size += len(piece)
        room = MOST_BYTES - len(self._head)
        self._head += piece[:room]
        self._tail = (self._tail + piece[room:])[-MOST_BYTES:] if len(piece) > room else self._tail
        return bool(piece)

    def drain(self) -> None:
        """Read all that is in the pipe, up to the limit of a flood."""
        before = -1
        while before < self._size <= _FLOOD:
            before = self._size
            self.read()

    def take(self) -> str:
        """Return the output since the last call, without its middle if it is long, and forget it."""
        left_out = self._size - len(self._head) - len(self._tail)
        between = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        text = bytes(self._head + between + self._tail).decode("utf-8", "replace")
        self._head, self._tail, self._size = bytearray(), bytearray(), 0
        return text
