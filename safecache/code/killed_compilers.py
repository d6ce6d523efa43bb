"""A compiler that a signal ended, as the system does when memory runs out: it is started once more, alone."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from safecache.reporting import events
from safecache.settings import config

__all__ = ["run", "signal_of"]

T = TypeVar("T")

# What the drivers of GCC and of Clang print when the compiler proper was ended.
_PRINTED = re.compile(r"error: (?:(.+) signal terminated program|unable to execute command: (.+))")
# Those by which a user, or whoever stops a server, ends all of its processes.
_WANTED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
_PAUSE = 0.2  # seconds


def run(compile: Callable[[], T]) -> T:
    """What ``compile`` returns, which runs a compiler: at its second attempt if a signal ended the first.

    No other second attempt of this user is made on this host meanwhile, for at most what SAFECACHE_WAIT says of locks:
    what ran out of memory side by side would do so again. Raises what the last attempt does.
    """
    try:
        return compile()
    except Exception as error:
        ended = signal_of(error)
        if not ended:
            raise
    events.log_line(
        logging.WARNING,
        f"safecache: a compiler was ended by a signal ({ended}), as the system does when memory runs out. It is "
        "started once more, alone; fewer are started at once with TORCHINDUCTOR_COMPILE_THREADS.",
    )
    with _alone(time.monotonic() + config.current().lock_timeout):
        return compile()


def signal_of(error: BaseException | None) -> str:
    """The signal that ended the compiler which failed so, as it was named; "" if none did, or one that a user sends."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode < 0:
            ended = signal.Signals(-error.returncode)
            return "" if ended in _WANTED else ended.name
        printed = _PRINTED.search(str(error))
        if printed is not None:
            name = (printed[1] or printed[2]).strip()
            return "" if name in map(signal.strsignal, _WANTED) else name
        error = error.__cause__
    return ""


@contextmanager
def _alone(deadline: float) -> Iterator[None]:
    # A name that the kernel gives to one process at a time, and takes back when that ends; it is no file, unix(7).
    name = f"\0safecache: compilers of {os.geteuid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        while time.monotonic() < deadline:
            try:
                held.bind(name)
                break
            except OSError:
                time.sleep(_PAUSE)
        yield
