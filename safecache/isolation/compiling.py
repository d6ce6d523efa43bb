"""Has the service compile kernels that Triton's cache lacks, and gives Triton the files that it would have made."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from safecache import compiles
from safecache.built_code.triton_place import LIST
from safecache.fs import opening, private_directory
from safecache.isolation import client, crashes, encoding, protocol
from safecache.isolation.client import Limits, Outcome, Request
from safecache.places import layout
from safecache.ports import KernelRequest
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.store import entry_files
from safecache.tiers import fallback

__all__ = [
    "Ahead",
    "Attempt",
    "Made",
    "Manager",
    "UnusableError",
    "obtain",
    "prepare_ahead",
    "report_in_process",
    "run",
    "run_together",
]

# A kernel has a dozen.
_MOST_FILES = 64
_REMEDY = "A crash of the compiler would end this process."


class UnusableError(Exception):
    """A worker's result is not the kernel, or there is no directory for it. The text says why."""


class Manager(Protocol):
    """Triton's cache manager, ours or one that wraps it."""

    def put(self, data: bytes, filename: str) -> str:
        """Store a file and return its path."""

    def put_group(self, filename: str, group: dict[str, str]) -> object:
        """Store the list of the files."""


class Made(NamedTuple):
    """The paths of the kernel's files by name; ``times``: those of the stages in µs, as in knobs.CompileTimes."""

    group: dict[str, str]
    times: dict[str, Any]


def report_in_process(what: str, why: str, error: BaseException | None = None) -> None:
    """Report, once per reason, that ``what`` is compiled in this process."""
    message = f"compiling {what} in this process"
    events.report(Reason.NOT_ISOLATED, message, why=why, cause=why, remedy=_REMEDY, error=error)


def obtain(request: Request, manager: Manager) -> Made | None:
    """The compiled kernel, now in the cache; None if it is to be compiled in this process.

    ``manager``: Triton's cache manager, ours or one that wraps it. None also if Triton rejects the kernel, so that
    Triton itself raises the error here. Raises TritonCompileCrash, and Triton's PTXASError, which needs no second
    compile.
    """
    note = crashes.find(request.root, request.hash, request.limits)
    if note is not None:
        raise crashes.report_skip(request.hash, note)
    # The kernel is encoded while the server starts.
    client.get_service().start()
    try:
        attempt = _attempt_compile(request)
        with closing(attempt):
            return _take_result(request, manager, attempt)
    except encoding.FrontEndError:
        return None
    except encoding.CannotTravel as error:
        report_in_process(f"the kernel {request.source.name}", str(error), error)
    except (client.ServiceUnavailable, UnusableError) as error:
        report_in_process("a compile of Triton's", str(error), error)
    return None


def _attempt_compile(request: Request) -> Attempt:
    """The attempt at this compile. During a tuning, all its other configurations are compiled ahead with it."""
    tuning = compiles.current.kernel_tuning
    if tuning is None:
        return run(request)
    made: Attempt | None = tuning.attempts.pop(request.key, None)
    if made is None:
        made, further = run_together(request, _iter_uncached(tuning.iter_requests(), request))
        tuning.attempts.update(further)
    return made


def _iter_uncached(asked: Iterable[KernelRequest], request: Request) -> Iterator[Request]:
    """Yield the compiles in ``asked`` for which the cache has neither the kernel nor a note of a crash."""
    known = {request.key}
    for each in asked:
        other = Request(*each[:4], each.metadata, request.root, request.limits)
        if other.key not in known:
            known.add(other.key)
            manager = sys.modules["triton.compiler.compiler"].get_cache_manager(other.hash)
            with compiles.override_scope(only_looks=True):
                is_cached = manager.get_group(other.metadata) is not None
            if not is_cached and crashes.find(other.root, other.hash, other.limits) is None:
                yield other


def _take_result(request: Request, manager: Manager, attempt: Attempt) -> Made | None:
    """Put the worker's result into the cache; None if the worker rejected the kernel. Raises what obtain() raises."""
    outcome, directory = attempt.outcome, attempt.directory
    reply = outcome.reply or {}
    error = reply.get("error", {"type": "", "message": ""})
    if not isinstance(error, dict) or not all(isinstance(error.get(name), str) for name in ("type", "message")):
        raise UnusableError("the answer of the process that compiled it makes no sense")
    found = crashes.diagnose_crash(outcome, directory)
    if found is not None:
        raise crashes.confirm_crash(request, attempt.job, found, outcome, directory)
    if "error" in reply:
        errors = sys.modules["triton.runtime.errors"]
        if error["type"].rpartition(".")[2] == errors.PTXASError.__name__:
            protocol.repeat_remarks(reply)  # what Triton prints then, such as the PTX
            raise errors.PTXASError(error["message"].removeprefix(str(errors.PTXASError(""))))
        return None
    contents = _read_outputs(request, reply, directory)
    protocol.repeat_remarks(reply)
    group = {name: manager.put(content, name) for name, content in contents.items()}
    manager.put_group(list(group)[-1], group)
    events.count(Count.ISOLATED, seconds=outcome.seconds)
    return Made(group, _parse_times(reply))


def _read_outputs(request: Request, reply: dict[str, Any], directory: str) -> dict[str, bytes]:
    """The files that the worker wrote by name, sorted, the kernel's metadata last. Raises UnusableError."""
    if reply.get("key") != request.hash:
        raise UnusableError("the process that compiled it came to another cache key")
    folder, metadata = reply.get("folder"), request.metadata or str(reply.get("metadata"))
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


def _parse_times(reply: dict[str, Any]) -> dict[str, Any]:
    """The times for Triton's listeners, in µs; 0 for invalid values."""
    told = reply.get("times")
    times = told if isinstance(told, dict) else {}
    stages = times.get("lowering_stages")
    pairs = [each for each in stages if isinstance(each, list) and len(each) == 2] if isinstance(stages, list) else []
    names = ("ir_initialization", "store_results")
    return {name: _parse_microseconds(times.get(name)) for name in names} | {
        "lowering_stages": [(str(stage), _parse_microseconds(time)) for stage, time in pairs]
    }


def _parse_microseconds(value: Any) -> int:
    return value if isinstance(value, int) else 0


class Attempt(NamedTuple):
    """A job and its outcome; ``directory`` holds the files that it wrote, until ``close`` is called."""

    job: dict[str, Any]
    outcome: Outcome
    directory: str
    close: Callable[[], None]


def run(request: Request) -> Attempt:
    """Compile in a worker. Raises CannotTravel, ServiceUnavailable and UnusableError."""
    return _run_job(_encode_job(request), request.limits)


def run_together(request: Request, others: Iterable[Request]) -> tuple[Attempt, dict[str, Attempt]]:
    """Compile ``request`` and ``others`` in parallel; return its attempt, and theirs by key without failed ones.

    Raises what run() raises for ``request``. Waits for all, since a busy machine would falsify a measurement.
    """
    batch = _Batch(request.limits, client.get_service().size)
    try:
        batch.add(request)
        for other in others:
            # The reason is reported when it is this one's turn.
            with suppress(encoding.CannotTravel):
                batch.add(other)
        batch.finish()
        return batch.take_attempt(request.key), batch.done
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
        self._queue.put((request.key, _encode_job(request)))
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

    def take_attempt(self, key: str) -> Attempt:
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
                attempt = _run_job(job, self._limits)
            except Exception as error:  # attempt_of() raises the caller's; others fail again in turn
                self._failed[key] = error
                continue
            with self._lock:
                if not self._is_cancelled:
                    self.done[key] = attempt
                    continue
            attempt.close()


def _run_job(job: dict[str, Any], limits: Limits) -> Attempt:
    with ExitStack() as undone:
        try:
            directory = undone.enter_context(private_directory.create_temporary())
        except OSError as error:
            raise UnusableError(str(error)) from error
        outcome = client.get_service().run(job, directory, timeout=limits.timeout, memory=limits.memory)
        return Attempt(job, outcome, directory, undone.pop_all().close)


def _encode_job(request: Request) -> dict[str, Any]:
    target = request.backend.target
    return {
        "source": encoding.encode(request.source, target, vars(request.options)),
        "target": [target.backend, target.arch, target.warp_size],
        "key": request.key,
        "triton_key": sys.modules["triton.runtime.cache"].triton_key(),
        "backend_key": request.backend.hash(),
    }


# What Triton takes from the text: IRSource.parse_options, 3.6 to 3.9.
# And what it calls the kernel: its first function that is not private.
_ENTRY = re.compile(r'\btt\.func\s+(?:public\s+)?@"?([^\s"(]+)')
_STATED = {
    "num_warps": re.compile(r'"ttg\.num-warps" = (\d+)'),
    "num_ctas": re.compile(r'"ttg\.num-ctas" = (\d+)'),
}
_PARSED = ("ttir", "ttgir", "glir")


class Ahead(NamedTuple):
    """A compile to be made before Triton reads the IR file. ``directory``: where the kernel's files belong."""

    request: Request
    variables: Any
    directory: str
    manager: Manager

    @property
    def name(self) -> str:
        """Triton's name of the kernel."""
        found = _ENTRY.search(self.request.source.src)
        return f"@{found[1]}" if found is not None else str(self.request.source.name)


def prepare_ahead(
    path: str, target: Any, options: dict[str, Any] | None, variables: Any, limits: Callable[[], Limits]
) -> Ahead | None:
    """The compile to make before Triton reads ``path``; None if it is cached, or cannot be isolated."""
    compiler = sys.modules["triton.compiler.compiler"]
    source = _make_unparsed(compiler, path)
    if source is None:
        return None
    backend = compiler.make_backend(target or compiler.driver.active.get_current_target())
    found = {} if source.ext == "ttir" else {name: said.search(source.src) for name, said in _STATED.items()}
    stated = {name: int(match[1]) for name, match in found.items() if match}
    parsed = backend.parse_options({**(options or {}), **stated})
    variables = compiler.get_cache_invalidating_env_vars() if variables is None else variables
    key = sys.modules["triton.runtime.cache"].get_cache_key(source, backend, parsed, variables)
    manager = compiler.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    directory = getattr(getattr(manager, "_file_cache_manager", manager), "cache_dir", "")
    if not directory:
        return None
    root = os.path.dirname(directory)
    places = [directory, *(place for place, _ in fallback.iter_lower_paths(directory, root))]
    if any(name.startswith(LIST) for place in places for name in _list_names(place)):
        return None  # whoever stored the group has parsed the file
    return Ahead(Request(source, backend, parsed, key, "", root, limits()), variables, directory, manager)


def _list_names(place: str) -> list[str]:
    try:
        return layout.list_entries(place)
    except OSError:
        return []  # reported by the lookup


def _make_unparsed(compiler: Any, path: str) -> Any:
    """An IRSource without the result of parsing; None for a file that is not parsed, or cannot be read."""
    source = object.__new__(compiler.IRSource)
    source.path, source.ext = path, Path(path).suffix[1:]
    if source.ext not in _PARSED:
        return None
    try:
        source.src = Path(path).read_text()
    except (OSError, ValueError):
        return None  # Triton raises that itself
    languages = sys.modules["triton.backends.compiler"].Language
    source.language = languages.GLUON if source.ext == "glir" else languages.TRITON
    source.name, source.signature = Path(path).name, {}
    return source
