"""The compile server: a clean process that forks workers, ends them and says how they ended. It never compiles itself.

It is clean so that forking it is safe, whatever its parent is: no CUDA, no torch, one thread, and nothing of LLVM has
run. It ends when its parent does, however that ends, and takes all that it has started with it.
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

# Seconds between two looks at whether the parent lives: a process that it has forked from C may hold its channel open.
_TICK = 2.0
# Seconds that a process may take to be gone after SIGKILL. One that hangs in the kernel (NFS) is left to a later look.
_DEATH = 5.0
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)


def main(descriptor: int, setup: dict[str, Any]) -> NoReturn:
    """Serve on this channel until the parent closes it, and exit. ``setup``: what to import, and for whom."""
    control = socket.socket(fileno=descriptor)
    _default_signals()
    # What is imported stays: to look for garbage in it takes a tenth of the time.
    gc.disable()
    try:
        places = {name: getattr(importlib.import_module(name), "__file__", None) for name in setup["imports"]}
        jobs = importlib.import_module(setup["jobs"])
    except Exception as error:
        protocol.send(control, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(os.EX_SOFTWARE)
    _silence()
    gc.collect()
    # What the collector writes to, a fork copies.
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
    """What the parent ignores or blocks is inherited, SIGCHLD for one, without which no child can be waited for."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _silence() -> None:
    # Up to here this is where the parent finds why there is no server; a worker has its own.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


class _Server:
    """The workers, by the numbers that the parent has given them: unlike pids, none is used twice."""

    def __init__(self, control: socket.socket, jobs: ModuleType, setup: dict[str, Any]) -> None:
        self._control = control
        self._run: worker.Run = jobs.run
        self._parent: int = setup["parent"]
        self._idle: float = setup["server_idle"]
        self._worker_idle: float = setup["worker_idle"]
        self._pids: dict[int, int] = {}
        self._ended: dict[int, dict[str, Any]] = {}

    def serve(self) -> None:
        """Until the parent is gone, or has wanted nothing for a while and no worker lives."""
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
        """Kill whatever runs, and what that has started."""
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
            # No process can be had, or no descriptors came.
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
        """How a worker has ended; one that lives on after ``grace`` seconds is killed."""
        if not self._wait(number, grace):
            self._kill(number)
            self._wait(number, _DEATH)
        return self._ended.pop(number, {"status": None, "peak": 0})

    def _wait(self, number: int, seconds: float) -> bool:
        """Whether it is gone by then."""
        until = time.monotonic() + seconds
        pause = 0.0002
        while not self._reap(number):
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        return True

    def _reap(self, number: int) -> bool:
        """Note how it has ended, if it has, with what it has started and left behind gone too."""
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
        with suppress(ProcessLookupError):  # that has no group of its own yet
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
