"""The workers of one process: forked on demand, kept while they are fit, replaced when they or their server end."""

from __future__ import annotations

import threading
import time

from safecache.isolation.connection import Connection, Ended, Limits, ServerGoneError, ServiceUnavailable
from safecache.isolation.workers import Worker

__all__ = ["Pool"]

# Seconds before a worker ends for lack of use that it is no longer used.
_MARGIN = 5.0
# Seconds for which nothing is tried, once a server could not be started or has ended twice in a row.
_PAUSE = 600.0
_MOST_DEATHS = 2


class Pool:
    """``jobs``, ``imports`` and ``limits`` are as Service has them. Safe for use by several threads."""

    def __init__(self, jobs: str, imports: tuple[str, ...], limits: Limits) -> None:
        self._jobs = jobs
        self._imports = imports
        self._limits = limits
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._idle: list[Worker] = []
        self._in_use = 0
        self._last_number = 0
        self._deaths = 0
        self._refusal = ""
        self._refuses_until = 0.0

    def connect(self) -> Connection:
        """The server, started if there is none, and not waited for. Raises ServiceUnavailable."""
        with self._lock:
            if time.monotonic() < self._refuses_until:
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
        """A worker: the caller's, to be put back or ended. Raises ServiceUnavailable."""
        while True:
            connection = self.connect()
            try:
                self._wait_for(connection)
                worker = self._idle_worker(connection) or Worker(connection, self._next_number())
            except ServerGoneError as error:
                self._lost(connection, error)
                continue
            with self._lock:
                self._in_use += 1
            return worker

    def put_back(self, worker: Worker) -> None:
        """It has done a job, and can do another."""
        with self._lock:
            self._in_use -= 1
            self._deaths = 0
            if worker.connection is self._connection:
                worker.connection.is_used()
                self._idle.append(worker)
                return
        worker.let_go()

    def end(self, worker: Worker, *, grace: float = 0.0) -> Ended:
        """Have it end, killed if it has not ended by itself after so many seconds. Raises ServerGoneError, when that is
        seen to; ServiceUnavailable if it was closed meanwhile."""
        with self._lock:
            self._in_use -= 1
        return self._end(worker, grace)

    def close(self) -> None:
        """End the server and all that it has started, also what is in use. A later connect() starts anew."""
        with self._lock:
            connection = self._connection
            self._drop()
        if connection is not None:
            connection.is_given_up = True
            connection.close()

    def in_child(self) -> Pool:
        """One for a forked child, which starts without a server."""
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
        self._refuses_until = time.monotonic() + _PAUSE
        self._deaths = 0

    def _lost(self, connection: Connection, error: ServerGoneError) -> None:
        """Have it started again, unless it was of no use since. Raises ServiceUnavailable if it was closed."""
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

    def _next_number(self) -> int:
        with self._lock:
            self._last_number += 1
            return self._last_number

    def _idle_worker(self, connection: Connection) -> Worker | None:
        """The one last used. Raises ServerGoneError."""
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
