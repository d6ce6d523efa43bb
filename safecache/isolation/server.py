"""The compile server: a clean process that forks workers, ends them and reports how they ended. It never compiles.

It is clean so that forking it is safe, whatever its parent is: no CUDA, no torch, one thread, and no LLVM code has
run. It ends when its parent does, however that ends, with all that it has started.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import time
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

from safecache.isolation import protocol, worker

__all__ = ["main"]

# Seconds between checks that the parent lives: a process that it forked in C code may hold its channel open.
_TICK = 2.0
# Seconds that a process may take to end after SIGKILL. One that hangs in the kernel (NFS) is left to a later check.
_DEATH = 5.0
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)


def main(descriptor: int, setup: dict[str, Any]) -> NoReturn:
    """Serve on this channel until the parent closes it, then exit. ``setup``: see Connection._start()."""
    control = socket.socket(fileno=descriptor)
    _default_signals()
    # Imported objects stay: collecting garbage among them would take a tenth of the time.
    gc.disable()
    try:
        places = {name: getattr(importlib.import_module(name), "__file__", None) for name in setup["imports"]}
        jobs = importlib.import_module(setup["jobs"])
    except Exception as error:
        protocol.send(control, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(os.EX_SOFTWARE)
    _silence()
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


def _default_signals() -> None:
    """Undo what is inherited from the parent: with SIGCHLD ignored, for one, no child could be waited for."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _silence() -> None:
    # Up to here the parent reads from it why there is no server; each worker has output of its own.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


class _Server:
    """The workers, by the numbers that the parent gives them: unlike pids, they are never reused."""

    def __init__(self, control: socket.socket, jobs: ModuleType, setup: dict[str, Any]) -> None:
        self._control = control
        self._run: worker.Run = jobs.run
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
        try:
            if message["do"] == "fork":
                answer = self._fork(message["worker"], *descriptors)
            else:
                answer = self._end(message["worker"], message["grace"])
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
            worker.main(channel, output, server, self._run, self._worker_idle)
        self._pids[number] = pid
        return {"pid": pid}

    def _end(self, number: int, grace: float) -> dict[str, Any]:
        """How a worker has ended; it is killed if it lives on after ``grace`` seconds."""
        if not self._wait(number, grace):
            self._kill(number)
            self._wait(number, _DEATH)
        return self._ended.pop(number, {"status": None, "peak": 0})

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
