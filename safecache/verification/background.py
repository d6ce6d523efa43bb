"""The hits that wait to be compiled again, one at a time, each in a process of its own that ends with this one."""

from __future__ import annotations

import base64
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from safecache.files import private_directory
from safecache.reporting.kinds import Kind
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.verification import verdicts
from safecache.verification.comparison import Difference
from safecache.verification.verdicts import Entry

__all__ = ["Job", "submit", "wait"]

# Compiles of whole models take minutes, at the lowest priority many.
DEADLINE = 1800.0
_GRACE = 30.0
# What waits is held in memory: beyond, hits are not verified.
_MOST, _MOST_BYTES = 256, 256 << 20
_MOST_SAID = 2000
_BOOT = "import sys; sys.path[:] = {!r}; from safecache.verification import guardian; guardian.main(*{!r})"
# Settings of this process that the other must not have: it has a cache of its own, and verifies nothing.
_WITHOUT = (
    *("SAFECACHE_VERIFY", "SAFECACHE_STRICT", "SAFECACHE_MUST_HIT", "SAFECACHE_LOWER", "SAFECACHE_LOCAL"),
    *("SAFECACHE_REMOTE", "SAFECACHE_ISOLATE", "SAFECACHE_METRICS", "SAFECACHE_EXPLAIN", "SAFECACHE_MAX_BYTES"),
    *("_SAFECACHE_REDIRECTED", "TRITON_CACHE_DIR", "TORCH_TRACE", "TORCH_LOGS", "TORCH_COMPILE_DEBUG"),
)
_WITH = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "SAFECACHE_SINGLE_FLIGHT": "0", "SAFECACHE": "1"}


class Job(NamedTuple):
    """A graph, as graphs.take() gives it, and what it hit."""

    graph: bytes
    entries: list[Entry]

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.graph) + sum(len(each.content) for each in self.entries)


class _State:
    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.jobs = self.size = 0
        self.is_ending = False


# A forked child has none of what waits, nor the thread.
_state: Part[_State] = Part(_State)


def submit(job: Job) -> None:
    """Have it compiled again when its turn comes."""
    state = _state.now
    with state.lock:
        is_full = state.jobs >= _MOST or state.size + job.size > _MOST_BYTES
        if not is_full:
            state.jobs, state.size = state.jobs + 1, state.size + job.size
            if state.thread is None:
                state.thread = threading.Thread(target=_work, args=(state,), name="safecache-verify", daemon=True)
                state.thread.start()
    if is_full:
        return _unverified(job, "too many others wait to be compiled again")
    state.waiting.put(job)


def wait(seconds: float) -> bool:
    """Wait for so long at most until nothing waits any more; whether that is so."""
    done = threading.Event()
    for _ in range(int(seconds * 20)):
        state = _state.now
        with state.lock:
            if not state.jobs:
                return True
        done.wait(0.05)
    return False


def _work(state: _State) -> None:
    while True:
        job = state.waiting.get()
        try:
            _verify(job)
        except Exception as error:
            _unverified(job, f"{type(error).__name__}: {error}")
        finally:
            with state.lock:
                state.jobs, state.size = state.jobs - 1, state.size - job.size


def _unverified(job: Job, why: str) -> None:
    kind, key = job.entries[0].key
    verdicts.unverified(f"{kind.noun} {key}", why)


def _verify(job: Job) -> None:
    answer = {} if _state.now.is_ending else _asked(job)
    if _state.now.is_ending:
        return
    if "failed" in answer:
        return _unverified(job, answer["failed"])
    by_key = {each.key: each for each in job.entries}
    for each in answer["verdicts"]:
        key = (Kind[each["kind"]], each["key"])
        if not each["differences"]:
            verdicts.alike()
        else:
            differences = [Difference(*pair) for pair in each["differences"]]
            verdicts.differs(by_key[key], base64.b64decode(each["made"]), differences)


def _asked(job: Job) -> dict[str, Any]:
    """What the other process says. Raises OSError."""
    with private_directory.create_temporary() as directory, _file() as asked, _file() as answered, _file() as said:
        content = {(each.key[0].name, each.key[1]): each.content for each in job.entries}
        pickle.dump((job.graph, content), asked)
        asked.flush()
        arguments = (asked.fileno(), answered.fileno(), directory, DEADLINE, os.getpid())
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(sys.path, arguments)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            pass_fds=arguments[:2],
            env=_environment(directory),
            start_new_session=True,
        )
        state = _state.now
        state.process = process
        try:
            status = process.wait(DEADLINE + _GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        finally:
            state.process = None
            with suppress(OSError):  # the pipe of a process that is gone
                process.stdin and process.stdin.close()
        answered.seek(0)
        answer = answered.read()
        return json.loads(answer) if status == 0 and answer else {"failed": _ending(status, said)}


def _file() -> Any:
    return os.fdopen(os.memfd_create("safecache"), "w+b")


def _environment(directory: str) -> dict[str, str]:
    environment = {name: text for name, text in config.child_environment().items() if name not in _WITHOUT}
    own = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(directory, "cache"), "TMPDIR": directory}
    return {**environment, **_WITH, **own}


def _ending(status: int, said: Any) -> str:
    if status == os.EX_TEMPFAIL:
        return f"its compile took more than {DEADLINE:g} s"
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _MOST_SAID))
    last = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    # 128 and more: of the compile; below 0: of the process that watches it.
    number = -status if status < 0 else status - 128
    how = signal.Signals(number).name if number in set(signal.Signals) else f"status {status}"
    return f"the process that compiled it ended with {how}{': ' if last else ''}{''.join(last)}"


@call_at_exit
def _end() -> None:
    """The other process ends with this one by itself; at an orderly end it is waited for, and its files are gone."""
    state = _state.now
    process, state.is_ending = state.process, True
    if process is not None and process.stdin is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            # To close it would not do: a child that was forked meanwhile holds it open.
            process.stdin.write(b"end")
            process.stdin.close()
            process.wait(_GRACE)
