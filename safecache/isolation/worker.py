"""A worker: forked by the server, runs one job after the other, any of which may crash it.

It affects the process that sends the jobs only by what it writes to its channel and its output.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from safecache.isolation import protocol

__all__ = ["TEMPORARY", "main"]

# Below the job's directory: compilers' temporary files are removed with that, even if they are killed.
TEMPORARY = ".tmp"

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = b"500"
_PAGE = resource.getpagesize()
# Loaded in the server: a lookup after the fork would be repeated in each worker.
_libc = ctypes.CDLL(None)

Run = Callable[[dict[str, Any], str], dict[str, Any]]


def main(channel: int, output: int, server: int, run: Run, idle: float) -> NoReturn:
    """Serve until the other side closes or sends nothing for ``idle`` seconds; ``server`` is the parent's pid."""
    status = os.EX_SOFTWARE
    try:
        _settle(output, server)
        _serve(socket.socket(fileno=channel), run, idle)
        status = os.EX_OK
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Never return into the server's code, nor run C++ destructors, which may hang.
        os._exit(status & 0xFF)


def _settle(output: int, server: int) -> None:
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


def _serve(channel: socket.socket, run: Run, idle: float) -> None:
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    while waiting.poll(idle * 1000):
        request = protocol.receive(channel)
        if request is None:
            return
        reply = _reply(request, run)
        sys.stdout.flush()
        sys.stderr.flush()
        _send(channel, reply)


def _reply(request: dict[str, Any], run: Run) -> dict[str, Any]:
    directory = request["directory"]
    try:
        _apply(request["job"]["environment"], directory, request["cwd"])
        _limit_memory(request["memory"])
        return run(request["job"], directory)
    except Exception as error:
        return _failure(error)
    finally:
        _limit_memory(None)
        os.chdir("/")


def _failure(error: Exception) -> dict[str, Any]:
    kind = type(error)
    return {"error": {"type": f"{kind.__module__}.{kind.__qualname__}", "message": str(error), "stage": ""}}


def _send(channel: socket.socket, reply: dict[str, Any]) -> None:
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * _PAGE
    try:
        protocol.send(channel, {"reply": reply, "resident": resident})
    except (TypeError, ValueError, protocol.ProtocolError) as error:
        protocol.send(channel, {"reply": _failure(error), "resident": resident})


def _apply(variables: dict[str, str], directory: str, cwd: str) -> None:
    """Set the environment and the working directory to those of the job's sender."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    os.environ["TMPDIR"] = os.path.join(directory, TEMPORARY)
    os.makedirs(os.environ["TMPDIR"], mode=0o700, exist_ok=True)
    tempfile.tempdir = None
    # It may be gone. The worker leaves it after the job, or it could prevent a file system from being unmounted.
    with suppress(OSError):
        os.chdir(cwd)


def _limit_memory(size: int | None) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = most if size is None or 0 <= most < size else size  # RLIM_INFINITY is -1
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
