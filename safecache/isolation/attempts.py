"""Compiles sent to the service, and their outcomes, kept until the requesting process takes them."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from safecache.files import private_directory
from safecache.isolation import client, encoding
from safecache.isolation.client import Outcome
from safecache.isolation.limits import Limits

__all__ = ["Attempt", "Request", "UnusableError", "run", "run_together"]


class UnusableError(Exception):
    """A worker's result is not the kernel, or there is no directory for it. The text says why."""


class Request(NamedTuple):
    """What triton.compile() is about to look up: ``key`` is its cache key, ``metadata`` the name of the file.

    ``metadata`` is "" if unknown.
    """

    source: Any
    backend: Any
    options: Any
    key: str
    metadata: str

    @property
    def hash(self) -> str:
        """What the kernel's directory is named after."""
        return hashlib.sha256(self.key.encode()).hexdigest()


class Attempt(NamedTuple):
    """A job and its outcome; ``directory`` holds the files that it wrote, until ``close`` is called."""

    job: dict[str, Any]
    outcome: Outcome
    directory: str
    close: Callable[[], None]


def run(request: Request, limits: Limits) -> Attempt:
    """Compile in a worker. Raises CannotTravel, ServiceUnavailable and UnusableError."""
    return _run(_job(request), limits)


def run_together(request: Request, others: Iterable[Request], limits: Limits) -> tuple[Attempt, dict[str, Attempt]]:
    """As run(), with ``others`` in parallel: returns their attempts by key, without those that failed to run.

    It returns when all are done, since a measurement meanwhile would be made on a busy machine.
    """
    batch = _Batch(limits, client.current().size)
    try:
        batch.add(request)
        for other in others:
            # The reason is reported when it is this one's turn.
            with suppress(encoding.CannotTravel):
                batch.add(other)
        batch.finish()
        return batch.attempt_of(request.key), batch.done
    except BaseException:
        batch.cancel()
        raise


class _Batch:
    """Jobs in a queue, worked off by ``threads`` threads, the calling one included."""

    def __init__(self, limits: Limits, threads: int) -> None:
        self.done: dict[str, Attempt] = {}
        self._failed: dict[str, Exception] = {}
        self._limits = limits
        self._threads = threads
        self._helpers: list[threading.Thread] = []
        self._queue: SimpleQueue[tuple[str, dict[str, Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_cancelled = False

    def add(self, request: Request) -> None:
        """Queue a request. Raises CannotTravel."""
        self._queue.put((request.key, _job(request)))
        # If no more threads can be started, there are fewer.
        with suppress(RuntimeError):
            if len(self._helpers) < self._threads - 1:
                # A daemon: a compile that hangs must not prevent this process from exiting.
                helper = threading.Thread(target=self._work, daemon=True)
                helper.start()
                self._helpers.append(helper)

    def finish(self) -> None:
        """Work off the queue, and wait for the other threads."""
        self._end_queue()
        self._work()
        for helper in self._helpers:
            helper.join()

    def attempt_of(self, key: str) -> Attempt:
        """The attempt for ``key``, which the caller must close. Raises as run() does."""
        if key in self._failed:
            raise self._failed[key]
        return self.done.pop(key)

    def cancel(self) -> None:
        """Start no more jobs, and discard all attempts."""
        with self._lock:
            self._is_cancelled = True
        self._end_queue()
        for attempt in self.done.values():
            attempt.close()

    def _end_queue(self) -> None:
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        for key, job in iter(self._queue.get, None):
            if self._is_cancelled:
                return
            try:
                attempt = _run(job, self._limits)
            except Exception as error:  # attempt_of() raises the caller's; others fail again in turn
                self._failed[key] = error
            else:
                self._keep(key, attempt)

    def _keep(self, key: str, attempt: Attempt) -> None:
        with self._lock:
            if not self._is_cancelled:
                self.done[key] = attempt
                return
        attempt.close()


def _run(job: dict[str, Any], limits: Limits) -> Attempt:
    with ExitStack() as undone:
        try:
            directory = undone.enter_context(private_directory.create_temporary())
        except OSError as error:
            raise UnusableError(str(error)) from error
        outcome = client.current().run(job, directory, timeout=limits.timeout, memory=limits.memory)
        return Attempt(job, outcome, directory, undone.pop_all().close)


def _job(request: Request) -> dict[str, Any]:
    target = request.backend.target
    return {
        "source": encoding.encode(request.source, target, vars(request.options)),
        "target": [target.backend, target.arch, target.warp_size],
        "key": request.key,
        "triton_key": sys.modules["triton.runtime.cache"].triton_key(),
        "backend_key": request.backend.hash(),
    }
