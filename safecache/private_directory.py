"""Directories that nobody but this user and root can enter or replace, wherever the temporary directory lies."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from safecache import ownership

__all__ = ["made", "of_process", "write"]

# An emptyDir of Kubernetes, mounted at /tmp, has mode 0777 and is not sticky: anybody can rename what lies in it.
# Memory comes last, of which a container has 64 MB there.
_OTHER_PARENTS = ("/var/tmp", "/dev/shm")


@contextmanager
def made() -> Iterator[str]:
    """A directory of mode 0700 for this block, removed after it. Raises PermissionError if none can be had."""
    directory = _make((tempfile.gettempdir(), *_OTHER_PARENTS))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def of_process() -> str:
    """This process's own directory, removed when it ends; a forked child has another. Raises as made() does."""
    return _of_process(os.getpid())


def write(name: str, content: bytes) -> str:
    """The path of a new file of this content and name, removed when the process ends; memory is used if a disk is full.

    Raises OSError, with nothing left behind.
    """
    try:
        return _write(of_process(), name, content)
    except OSError:
        return _write(_of_process(os.getpid(), _OTHER_PARENTS[::-1]), name, content)


def _write(parent: str, name: str, content: bytes) -> str:
    directory = tempfile.mkdtemp(dir=parent)
    path = os.path.join(directory, name)
    try:
        with open(path, "xb") as file:
            file.write(content)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return path


@functools.lru_cache(maxsize=2)
def _of_process(pid: int, parents: tuple[str, ...] = ()) -> str:
    directory = _make(parents or (tempfile.gettempdir(), *_OTHER_PARENTS))
    atexit.register(_remove, directory, pid)
    return directory


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)


def _make(parents: tuple[str, ...]) -> str:
    objections = []
    for parent in parents:
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix="safecache-", dir=parent)
            objection = ownership.why_not_private(directory)
            if objection is None:
                return directory
            os.rmdir(directory)
            objections.append(objection)
    raise PermissionError(f"no directory out of the reach of others can be made: {'; '.join(objections)}")
