"""A worker: forked by the server, runs one job after the other, and may die of any of them.

Nothing of it reaches the process that sends the jobs, except what it writes to its channel and to its output.
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

# Below the job's directory: what compilers keep there while they run goes when that goes, also if they are killed.
TEMPORARY = ".tmp"

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = b"500"
_PAGE = resource.getpagesize()
# Loaded by the server: what is looked up after a fork costs each worker anew.
_libc = ctypes.CDLL(None)

Run = Callable[[dict[str, Any], str], dict[str, Any]]


def main(channel: int, output: int, server: int, run: Run, idle: float) -> NoReturn:
    """Serve until the other side closes, or for ``idle`` seconds nothing comes; ``server`` is the parent's pid."""
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
        # Never back into the server's code, nor through destructors of C++ that may hang.
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
    # With 0 the kernel would still start a handler of core dumps that takes them from a pipe; with 1 it does not.
    limit = most if most == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    # Rather this process than the one that waits for it. Some containers have /proc read-only.
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
    """Have the environment and the working directory that the job's sender has at this moment."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
    os.environ["TMPDIR"] = os.path.join(directory, TEMPORARY)
    os.makedirs(os.environ["TMPDIR"], mode=0o700, exist_ok=True)
    tempfile.tempdir = None
    # It may be gone. It is left after the job, or it could keep a file system from being unmounted.
    with suppress(OSError):
        os.chdir(cwd)


def _limit_memory(size: int | None) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = most if size is None or 0 <= most < size else size  # RLIM_INFINITY is -1
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
