"""The descriptors of this process's compile service, which a forked child must not hold.

A child that held them would keep the server of a parent that is gone, and hide from a parent that its server is.
"""

from __future__ import annotations

import os
import socket
import threading
from io import FileIO
from typing import Protocol

__all__ = ["close", "notes", "pipe", "socketpair"]


class Closable(Protocol):
    """A socket or a file."""

    def close(self) -> None: ...


_open: set[Closable] = set()
# Held during a fork, so that a child closes all of them and nothing else. Its holder can take it again: a signal's
# handler may fork.
_descriptors_lock = threading.RLock()


def socketpair() -> tuple[socket.socket, socket.socket]:
    """A connected pair. Raises OSError."""
    with _descriptors_lock:
        pair = socket.socketpair()
        _open.update(pair)
    return pair


def pipe() -> tuple[FileIO, FileIO]:
    """The end to read from, which does not block, and the one to write to. Raises OSError."""
    with _descriptors_lock:
        read_end, write_end = os.pipe()
        pair = FileIO(read_end, "rb"), FileIO(write_end, "wb")
        _open.update(pair)
    os.set_blocking(read_end, False)
    return pair


def notes() -> FileIO:
    """A file in memory; nothing is kept where the kernel has none. Raises OSError."""
    with _descriptors_lock:
        try:
            file = FileIO(os.memfd_create("safecache"), "w+b")
        except (AttributeError, OSError):
            file = FileIO(os.devnull, "w+b")
        _open.add(file)
    return file


def close(*what: Closable) -> None:
    """Close these. Idempotent."""
    with _descriptors_lock:
        for each in what:
            _open.discard(each)
            each.close()


def _before_fork() -> None:
    _descriptors_lock.acquire()


def _after_in_parent() -> None:
    _descriptors_lock.release()


def _after_in_child() -> None:
    global _descriptors_lock
    _descriptors_lock = threading.RLock()
    while _open:
        _open.pop().close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
