"""Directories that nobody but this user and root can enter or replace, wherever the temporary directory lies."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache import occupancy, ownership

__all__ = ["lasting", "made", "of_process", "write"]

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
        occupancy.leave(directory)


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
    return _removed_at_end(_make(parents=parents), pid)


def lasting(is_fit: Callable[[str], bool]) -> str:
    """Another one, that ``is_fit`` takes, removed when this process ends. Raises as made() does.

    First those are removed that processes which were killed have left behind.
    """
    for parent in _parents():
        occupancy.reap(parent)
    return _removed_at_end(_make(is_fit), os.getpid())


def _removed_at_end(directory: str, pid: int) -> str:
    atexit.register(_remove, directory, pid)
    # A process that multiprocessing has forked ends without what was registered above.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, _remove, (directory, pid), exitpriority=0)
    return directory


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
        occupancy.leave(directory)


def _parents() -> tuple[str, ...]:
    return tempfile.gettempdir(), *_OTHER_PARENTS


def _make(is_fit: Callable[[str], bool] = os.path.isdir, parents: tuple[str, ...] = ()) -> str:
    objections = []
    for parent in parents or _parents():
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix="safecache-", dir=parent)
            # Where root is not mapped, its directories are anybody's, and so would be each that could be made in them.
            objection = ownership.why_not_private(directory, unknown=True)
            if objection is None and is_fit(directory):
                return occupancy.occupy(directory)
            os.rmdir(directory)
            objections.append(objection or f"{parent} is full, or no code can be loaded from there")
    raise PermissionError(f"no directory out of the reach of others can be made: {'; '.join(objections)}")
