"""A process's connection to its compile server and the workers that this forks; forked children hold none of it."""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from io import FileIO
from typing import Any, NamedTuple

from safecache.isolation import protocol
from safecache.session import Part, fork_lock
from safecache.settings import children, config

__all__ = [
    "MOST_BYTES",
    "Connection",
    "Ended",
    "Output",
    "ServerGoneError",
    "ServerLimits",
    "ServiceUnavailable",
    "UnreadError",
    "Worker",
    "close",
    "open_notes",
    "open_pipe",
    "open_socketpair",
]


Closable = socket.socket | FileIO


def _close_all(files: set[Closable]) -> set[Closable]:
    while files:
        files.pop().close()
    return files


# What a child closes, exactly these: no fork may come in between. The same after reset(), for it is in use.
_open: Part[set[Closable]] = Part(functools.cache(set), _close_all)


def open_socketpair() -> tuple[socket.socket, socket.socket]:
    """A connected pair. Raises OSError."""
    with fork_lock:
        pair = socket.socketpair()
        _open.now.update(pair)
    return pair


def open_pipe() -> tuple[FileIO, FileIO]:
    """A pipe: the read end, which does not block, and the write end. Raises OSError."""
    with fork_lock:
        read_end, write_end = os.pipe()
        pair = FileIO(read_end, "rb"), FileIO(write_end, "wb")
        _open.now.update(pair)
    os.set_blocking(read_end, False)
    return pair


def open_notes() -> FileIO:
    """A file in memory, or /dev/null if the kernel has none. Raises OSError."""
    with fork_lock:
        try:
            file = FileIO(os.memfd_create("safecache"), "w+b")
        except (AttributeError, OSError):
            file = FileIO(os.devnull, "w+b")
        _open.now.add(file)
    return file


def close(*what: Closable) -> None:
    """Close these. Idempotent."""
    with fork_lock:
        for each in what:
            _open.now.discard(each)
            each.close()


_BOOT = "import sys; sys.path[:] = {!r}; from safecache.isolation import server; server.main({!r}, {!r})"
# Seconds that the server may take to fork, or to end a worker that SIGKILL does not end at once.
_PATIENCE = 30.0
# Seconds that the server may take to end.
_FAREWELL = 10.0
# The server is no longer used so many seconds before it would end for lack of use.
_MARGIN = 5.0
_MOST_SAID = 2000


class ServiceUnavailable(Exception):
    """Error of a service that can compile nothing outside this process; the message says why."""


class ServerGoneError(Exception):
    """The server has ended or does not answer, and its workers end with it; the message says how."""


class ServerLimits(NamedTuple):
    """A worker is replaced after ``jobs`` jobs or at ``resident`` bytes; idle workers and servers end after so many
    seconds, and the server may take ``start`` seconds to start."""

    jobs: int = 200
    resident: int = 1 << 30
    worker_idle: float = 60.0
    server_idle: float = 600.0
    start: float = 120.0


class Ended(NamedTuple):
    """How a worker ended: ``status`` as Popen.returncode, None if it would not end; ``peak`` resident size in bytes."""

    status: int | None
    peak: int


class Connection:
    """A server, started by the constructor, which does not wait for it. Raises ServiceUnavailable."""

    def __init__(self, jobs: str, imports: tuple[str, ...], limits: ServerLimits) -> None:
        self._imports = imports
        self._limits = limits
        self._starting = threading.Lock()
        self._lock = threading.Lock()
        self._is_ready = False
        self.is_given_up = False
        self._used = time.monotonic()
        try:
            with ExitStack() as undone:
                self._notes = open_notes()
                undone.callback(close, self._notes)
                self._control, theirs = open_socketpair()
                undone.callback(close, self._control, theirs)
                self._process = self._start(theirs.fileno(), jobs)
                undone.pop_all()
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the interpreter is ending
            raise ServiceUnavailable(f"no compile server can be started: {type(error).__name__}: {error}") from error
        close(theirs)

    def _start(self, descriptor: int, jobs: str) -> subprocess.Popen[bytes]:
        if not sys.executable or getattr(sys, "frozen", False):
            raise ValueError("sys.executable names no Python interpreter")
        setup = {
            "parent": os.getpid(),
            "imports": self._imports,
            "jobs": jobs,
            "worker_idle": self._limits.worker_idle,
            "server_idle": self._limits.server_idle,
        }
        return subprocess.Popen(
            # Without site: modules that .pth files import may make forking unsafe.
            [sys.executable, "-S", "-c", _BOOT.format(_list_paths(self._imports), descriptor, setup)],
            stdin=subprocess.DEVNULL,
            stdout=self._notes,
            stderr=self._notes,
            **children.make_options(config.copy_environment() | {"SAFECACHE": "0"}),
            pass_fds=(descriptor,),
            # Signals from the terminal, such as Ctrl-C, are for this process's group only.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The server's pid."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for the server. Raises ServiceUnavailable if it cannot be used, ServerGoneError if it is gone."""
        with self._starting:
            if self._is_ready:
                return
            try:
                answer = self._exchange(None, self._limits.start)
            except ServerGoneError as error:
                if not isinstance(error.__cause__, TimeoutError):
                    raise
                answer = {"failed": f"it was not ready after {self._limits.start:.0f} s"}
            problem = None if "ready" in answer else str(answer.get("failed"))
            for name in self._imports if problem is None else ():
                theirs = answer["ready"].get(name)
                ours = getattr(sys.modules.get(name), "__file__", theirs)
                if theirs != ours:
                    problem = f"it would compile with the {name} of {theirs}, and this process has that of {ours}"
            self._is_ready = problem is None
        if problem is not None:
            self.close()
            raise ServiceUnavailable(f"the compile server cannot be used: {problem}")

    def fork(self, number: int, channel: int, output: int) -> int:
        """The pid of a new worker, known by ``number`` from now on. Raises ServiceUnavailable or ServerGoneError."""
        answer = self._exchange({"do": "fork", "worker": number}, _PATIENCE, (channel, output))
        if "pid" not in answer:
            raise ServiceUnavailable(f"no worker can be started: {answer.get('failed')}")
        return int(answer["pid"])

    def end(self, number: int, grace: float) -> Ended:
        """How this worker has ended, killed if it lives on after ``grace`` seconds. Raises ServerGoneError."""
        answer = self._exchange({"do": "end", "worker": number, "grace": grace}, grace + _PATIENCE)
        return Ended(answer["status"], answer["peak"])

    def _exchange(
        self, message: dict[str, Any] | None, patience: float, passed: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        try:
            with self._lock:
                self._control.settimeout(patience)
                if message is not None:
                    protocol.send(self._control, message, passed)
                answer = protocol.receive(self._control, time.monotonic() + patience)
        except (OSError, protocol.ProtocolError) as error:
            raise self._make_gone_error(f"{type(error).__name__}: {error}") from error
        except BaseException:
            # Interrupted: the next answer could be to any request.
            self.close()
            raise
        if answer is None:
            raise self._make_gone_error("it closed its channel")
        self.note_use()
        return answer

    def _make_gone_error(self, how: str) -> ServerGoneError:
        said = ""
        with suppress(OSError, ValueError):  # closed by another thread
            if not self._is_ready:
                self._notes.seek(0)
                said = self._notes.read().decode("utf-8", "replace").strip()[-_MOST_SAID:]
        return ServerGoneError(f"{how} (exit status {self.close()}) {said}".strip())

    def note_use(self) -> None:
        """Note that the server is in use, which postpones its end."""
        self._used = time.monotonic()

    def is_stale(self) -> bool:
        """Whether it may be about to end for lack of use."""
        idle = self._limits.server_idle
        return time.monotonic() - self._used > idle - min(_MARGIN, idle / 2)

    def close(self) -> int:
        """End the server with all that it has started, wait for that, and return its exit status. Idempotent."""
        with suppress(OSError):  # closed already
            self._control.shutdown(socket.SHUT_RDWR)
        if not self._is_ready:
            self._process.kill()  # it would not notice before it has imported everything
        try:
            status = self._process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        with self._lock:
            close(self._control, self._notes)
        return status

    def forget(self) -> None:
        """Leave the server to the parent, in a forked child."""
        self._process.returncode = 0  # or Popen warns that it still runs


def _list_paths(imports: tuple[str, ...]) -> list[str]:
    """Return this process's sys.path, for a server without site and with another working directory."""
    standard = os.path.dirname(os.__file__)
    paths = [path for path in sys.path if isinstance(path, str)]
    with suppress(FileNotFoundError):  # a working directory that is gone holds no modules
        paths = [os.path.abspath(path) for path in paths]
    # The standard library first: a script's directory may hold a resource.py, which only the server would import.
    ahead = [standard, os.path.join(standard, "lib-dynload")]
    modules = (sys.modules.get(name) for name in ("safecache", *imports))
    files = [getattr(module, "__file__", None) for module in modules]
    # An editable install may be found by a finder rather than by a path.
    packages = [os.path.dirname(os.path.dirname(file)) for file in files if file]
    return list(dict.fromkeys(ahead + paths + packages))


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
                self._channel, channel = open_socketpair()
                undone.callback(close, self._channel, channel)
                self._pipe, written = open_pipe()
                undone.callback(close, self._pipe, written)
                self._pid = connection.fork(number, channel.fileno(), written.fileno())
                undone.pop_all()
        except OSError as error:
            raise ServiceUnavailable(f"no worker can be started: {error}") from error
        close(channel, written)
        self._since = _read_start_time(self._pid)
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
            if _read_start_time(self._pid) in (None, self._since):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGKILL)
            raise
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close our ends of its channel and pipe, on which an idle worker ends."""
        close(self._channel, self._pipe)


def _read_start_time(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


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
