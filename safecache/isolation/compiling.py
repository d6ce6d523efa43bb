"""Has the service compile kernels that Triton's cache lacks, and gives Triton the files that it would have made."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from safecache import compiles
from safecache.code.triton_place import LIST
from safecache.files import opening, private_directory
from safecache.isolation import client, crashes, encoding, protocol
from safecache.isolation.client import Limits, Outcome, Request
from safecache.ports import KernelRequest
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.store import entry_files

__all__ = [
    "Attempt",
    "UnusableError",
    "in_process",
    "obtain",
    "run",
    "run_together",
]

# A kernel has a dozen.
_MOST_FILES = 64
_REMEDY = "It is compiled in this process, which a crash of the compiler would end."


class UnusableError(Exception):
    """A worker's result is not the kernel, or there is no directory for it. The text says why."""


def in_process(what: str, why: str, error: BaseException | None = None) -> None:
    """Report, once per reason, that ``what`` is compiled in this process."""
    events.report(Reason.NOT_ISOLATED, f"{what} is not isolated: {why}.", cause=why, remedy=_REMEDY, error=error)


def obtain(request: Request, manager: Any) -> dict[str, str] | None:
    """The paths of the kernel's files, now in the cache, by name; None if it is to be compiled in this process.

    ``manager``: Triton's cache manager, ours or one that wraps it. None also if Triton rejects the kernel, so that
    Triton itself raises the error here. Raises TritonCompileCrash, and Triton's PTXASError, which needs no second
    compile.
    """
    note = crashes.find(request.root, request.hash, request.limits)
    if note is not None:
        raise crashes.skipped(request.hash, note)
    # The kernel is encoded while the server starts.
    client.current().start()
    try:
        attempt = _attempt(request)
        with closing(attempt):
            return _taken(request, manager, attempt)
    except encoding.FrontEndError:
        return None
    except encoding.CannotTravel as error:
        in_process(f"the kernel {request.source.name}", str(error), error)
    except (client.ServiceUnavailable, UnusableError) as error:
        in_process("a compile of Triton's", str(error), error)
    return None


def _attempt(request: Request) -> Attempt:
    """The attempt at this compile. During a tuning, all its other configurations are compiled ahead with it."""
    tuning = compiles.current.kernel_tuning
    if tuning is None:
        return run(request)
    made: Attempt | None = tuning.attempts.pop(request.key, None)
    if made is None:
        made, further = run_together(request, _others(tuning.asked(), request))
        tuning.attempts.update(further)
    return made


def _others(asked: Iterable[KernelRequest], request: Request) -> Iterator[Request]:
    """Those of the compiles that were asked for of which the cache has neither the kernel nor a note of a crash."""
    known = {request.key}
    for each in asked:
        other = Request(*each[:4], each.metadata, request.root, request.limits)
        if other.key not in known:
            known.add(other.key)
            manager = sys.modules["triton.compiler.compiler"].get_cache_manager(other.hash)
            with compiles.scope(only_looks=True):
                is_cached = manager.get_group(other.metadata) is not None
            if not is_cached and crashes.find(other.root, other.hash, other.limits) is None:
                yield other


def _taken(request: Request, manager: Any, attempt: Attempt) -> dict[str, str] | None:
    """What the worker has made, put into the cache; None if it has rejected the kernel. Raises as obtain() does."""
    outcome, directory = attempt.outcome, attempt.directory
    reply = outcome.reply or {}
    error = reply.get("error", {"type": "", "message": ""})
    if not isinstance(error, dict) or not all(isinstance(error.get(name), str) for name in ("type", "message")):
        raise UnusableError("the answer of the process that compiled it makes no sense")
    found = crashes.diagnosed(outcome, directory)
    if found is not None:
        raise crashes.confirmed(request, attempt.job, found, outcome, directory)
    if "error" in reply:
        errors = sys.modules["triton.runtime.errors"]
        if error["type"].rpartition(".")[2] == errors.PTXASError.__name__:
            protocol.repeat(reply)  # what Triton prints then, such as the PTX
            raise errors.PTXASError(error["message"].removeprefix(str(errors.PTXASError(""))))
        return None
    contents = _contents(request, reply, directory)
    protocol.repeat(reply)
    group = {name: manager.put(content, name) for name, content in contents.items()}
    manager.put_group(list(group)[-1], group)
    events.count(Count.ISOLATED, seconds=outcome.seconds)
    return group


def _contents(request: Request, reply: dict[str, Any], directory: str) -> dict[str, bytes]:
    """The files that the worker wrote by name, sorted, the kernel's metadata last. Raises UnusableError."""
    if reply.get("key") != request.hash:
        raise UnusableError("the process that compiled it came to another cache key")
    folder, metadata = reply.get("folder"), request.metadata
    is_name = isinstance(folder, str) and os.path.basename(folder) == folder
    if not is_name or folder in ("", os.curdir, os.pardir) or reply.get("metadata") != metadata:
        raise UnusableError("the process that compiled it tells of other files")
    place, contents = os.path.join(directory, str(folder)), {}
    left = entry_files.max_entry_size(Kind.KERNEL)  # for all of them
    try:
        with os.scandir(place) as found:
            names = sorted(item.name for item in itertools.islice(found, _MOST_FILES + 1))
        if len(names) > _MOST_FILES:
            raise OSError(errno.EFBIG, f"it has more than {_MOST_FILES} files", place)
        # The group's list is rewritten with the files' new paths.
        for name in (name for name in names if not name.startswith(LIST)):
            check = opening.check_up_to(left)
            contents[name] = opening.read_regular(os.path.join(place, name), check, flags=os.O_NOFOLLOW, limit=left)
            left -= len(contents[name])
        contents[metadata] = contents.pop(metadata)
    except (OSError, opening.UnusableEntry, KeyError) as error:
        raise UnusableError(f"what it has made cannot be read: {error}") from error
    return contents


class Attempt(NamedTuple):
    """A job and its outcome; ``directory`` holds the files that it wrote, until ``close`` is called."""

    job: dict[str, Any]
    outcome: Outcome
    directory: str
    close: Callable[[], None]


def run(request: Request) -> Attempt:
    """Compile in a worker. Raises CannotTravel, ServiceUnavailable and UnusableError."""
    return _run(_job(request), request.limits)


def run_together(request: Request, others: Iterable[Request]) -> tuple[Attempt, dict[str, Attempt]]:
    """As run(), with ``others`` in parallel: returns their attempts by key, without those that failed to run.

    It returns when all are done, since a measurement meanwhile would be made on a busy machine.
    """
    batch = _Batch(request.limits, client.current().size)
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
                continue
            with self._lock:
                if not self._is_cancelled:
                    self.done[key] = attempt
                    continue
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
