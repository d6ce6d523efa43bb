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

__all__ = ["made", "of_process"]

# An emptyDir of Kubernetes, mounted at /tmp, has mode 0777 and is not sticky: anybody can rename what lies in it.
# Memory comes last, of which a container has 64 MB there.
_OTHER_PARENTS = ("/var/tmp", "/dev/shm")


@contextmanager
def made() -> Iterator[str]:
    """A directory of mode 0700 for this block, removed after it. Raises PermissionError if none can be had."""
    directory = _make()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def of_process() -> str:
    """This process's own directory, removed when it ends; a forked child has another. Raises as made() does."""
    return _of_process(os.getpid())


@functools.lru_cache(maxsize=1)
def _of_process(pid: int) -> str:
    directory = _make()
    atexit.register(_remove, directory, pid)
    return directory


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)


def _make() -> str:
    objections = []
    for parent in (tempfile.gettempdir(), *_OTHER_PARENTS):
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix="safecache-", dir=parent)
            objection = ownership.why_not_private(directory)
            if objection is None:
                return directory
            os.rmdir(directory)
            objections.append(objection)
    raise PermissionError(f"no directory out of the reach of others can be made: {'; '.join(objections)}")
