"""The compile server: a clean process that forks workers, ends them and reports how they ended. It never compiles.

It is clean so that forking it is safe, whatever its parent is: no CUDA, no torch, one thread, and no LLVM code has
run. It ends when its parent does, however that ends, with all that it has started.

A worker runs one job after the other, any of which may crash it. It affects the process that sends the jobs only by
what it writes to its channel and its output.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

from safecache.isolation import protocol

__all__ = ["main", "work"]

# Seconds between checks that the parent lives: a process that it forked in C code may hold its channel open.
_TICK = 2.0
# Seconds that a process may take to end after SIGKILL. One that hangs in the kernel (NFS) is left to a later check.
_DEATH = 5.0
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = b"500"
_PAGE = resource.getpagesize()
# Loaded in the server: a lookup after the fork would be repeated in each worker.
_libc = ctypes.CDLL(None)

Run = Callable[[dict[str, Any], str], dict[str, Any]]


def main(descriptor: int, setup: dict[str, Any]) -> NoReturn:
    """Serve on this channel until the parent closes it, then exit. ``setup``: see Connection._start()."""
    control = socket.socket(fileno=descriptor)
    # What is inherited from the parent is undone: with SIGCHLD ignored, for one, no child could be waited for.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Imported objects stay: collecting garbage among them would take a tenth of the time.
    gc.disable()
    try:
        places = {name: getattr(importlib.import_module(name), "__file__", None) for name in setup["imports"]}
        jobs = importlib.import_module(setup["jobs"])
    except Exception as error:
        protocol.send(control, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(os.EX_SOFTWARE)
    # Up to here the parent reads from it why there is no server; each worker has output of its own.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    gc.collect()
    # Pages that the collector writes to would be copied in each fork.
    gc.freeze()
    gc.enable()
    protocol.send(control, {"ready": places})
    server = _Server(control, jobs, setup)
    try:
        server.serve()
    finally:
        server.end_all()
        os._exit(os.EX_OK)


class _Server:
    """The workers, by the numbers that the parent gives them: unlike pids, they are never reused."""

    def __init__(self, control: socket.socket, jobs: ModuleType, setup: dict[str, Any]) -> None:
        self._control = control
        self._run: Run = jobs.run
        self._parent: int = setup["parent"]
        self._idle: float = setup["server_idle"]
        self._worker_idle: float = setup["worker_idle"]
        self._pids: dict[int, int] = {}
        self._ended: dict[int, dict[str, Any]] = {}

    def serve(self) -> None:
        """Serve until the parent is gone, or there is no worker and no request for a while."""
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        used = time.monotonic()
        while time.monotonic() - used < self._idle and os.getppid() == self._parent:
            if waiting.poll(min(_TICK, self._idle) * 1000):
                message, descriptors = protocol.receive_with_descriptors(self._control)
                if message is None:
                    return
                self._answer(message, descriptors)
                used = time.monotonic()
            for number in list(self._pids):
                self._reap(number)
            if self._pids:
                used = time.monotonic()

    def end_all(self) -> None:
        """Kill all workers with all that they have started."""
        for number in list(self._pids):
            self._kill(number)
        for number in list(self._pids):
            self._wait(number, _DEATH)

    def _answer(self, message: dict[str, Any], descriptors: list[int]) -> None:
        number = message["worker"]
        try:
            if message["do"] == "fork":
                answer = self._fork(number, *descriptors)
            else:
                if not self._wait(number, message["grace"]):
                    self._kill(number)
                    self._wait(number, _DEATH)
                answer = self._ended.pop(number, {"status": None, "peak": 0})
        except (OSError, TypeError) as error:
            # No process can be started, or no descriptors came.
            answer = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        protocol.send(self._control, answer)

    def _fork(self, number: int, channel: int, output: int) -> dict[str, Any]:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            work(channel, output, server, self._run, self._worker_idle)
        self._pids[number] = pid
        return {"pid": pid}

    def _wait(self, number: int, seconds: float) -> bool:
        """Whether the worker ends within so many seconds."""
        until = time.monotonic() + seconds
        pause = 0.0002
        while not self._reap(number):
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return True

    def _reap(self, number: int) -> bool:
        """Whether the worker has ended; if so, record how, and kill the children that it left behind."""
        pid = self._pids.get(number)
        # Its group is killed before its pid is free: after that, the number may be another group's.
        if pid is not None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._kill(number)
            _, status, usage = os.wait4(pid, 0)
            del self._pids[number]
            self._ended[number] = {"status": os.waitstatus_to_exitcode(status), "peak": usage.ru_maxrss * 1024}
        return number not in self._pids

    def _kill(self, number: int) -> None:
        pid = self._pids[number]
        with suppress(ProcessLookupError):  # it has no group of its own yet
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)


def work(channel: int, output: int, server: int, run: Run, idle: float) -> NoReturn:
    """Serve until the other side closes or sends nothing for ``idle`` seconds; ``server`` is the parent's pid."""
    status = os.EX_SOFTWARE
    try:
        _set_up_process(output, server)
        _serve_jobs(socket.socket(fileno=channel), run, idle)
        status = os.EX_OK
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Never return into the server's code, nor run C++ destructors, which may hang.
        os._exit(status & 0xFF)


def _set_up_process(output: int, server: int) -> None:
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        raise SystemExit(os.EX_OSERR)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # With 0 the kernel would still start a core dump handler that reads from a pipe; with 1 it does not.
    limit = most if most == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    # The OOM killer should choose this process, not the one that waits for it. Some containers have /proc read-only.
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(_OOM_SCORE)
    faulthandler.enable()


def _serve_jobs(channel: socket.socket, run: Run, idle: float) -> None:
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    while waiting.poll(idle * 1000):
        request = protocol.receive(channel)
        if request is None:
            return
        try:
            _apply_environment(request["job"]["environment"], request["directory"], request["cwd"])
            _limit_memory(request["memory"])
            reply = run(request["job"], request["directory"])
        except Exception as error:
            reply = _encode_failure(error)
        finally:
            _limit_memory(None)
            os.chdir("/")
        sys.stdout.flush()
        sys.stderr.flush()
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * _PAGE
        try:
            protocol.send(channel, {"reply": reply, "resident": resident})
        except (TypeError, ValueError, protocol.ProtocolError) as error:
            protocol.send(channel, {"reply": _encode_failure(error), "resident": resident})


def _encode_failure(error: Exception) -> dict[str, Any]:
    kind = type(error)
    return {"error": {"type": f"{kind.__module__}.{kind.__qualname__}", "message": str(error), "stage": ""}}


def _apply_environment(variables: dict[str, str], directory: str, cwd: str) -> None:
    """Set the environment and the working directory to those of the job's sender."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    os.environ["TMPDIR"] = os.path.join(directory, protocol.TEMPORARY)
    os.makedirs(os.environ["TMPDIR"], mode=0o700, exist_ok=True)
    tempfile.tempdir = None
    # It may be gone. The worker leaves it after the job, or it could prevent a file system from being unmounted.
    with suppress(OSError):
        os.chdir(cwd)


def _limit_memory(size: int | None) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = most if size is None or 0 <= most < size else size  # RLIM_INFINITY is -1
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
