"""Directories that nobody but this user and root can enter or replace, which are in use, and copies beyond change."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache.files import mounts, ownership

__all__ = ["join", "lasting", "leave", "made", "make", "occupy", "of_process", "reap", "write"]

_PREFIX = "safecache-live-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# A forked child has the same, and so keeps what its parent has locked.
_held: dict[str, int] = {}


def occupy(directory: str) -> str:
    """Lock the directory that this process has just made, for as long as it lives; returns the name that it has then.

    Where that cannot be done it keeps its name, by which nobody takes it for one that is left behind.
    """
    parent = os.path.dirname(directory)
    name = os.path.join(parent, f"{_PREFIX}{secrets.token_hex(8)}")
    with suppress(OSError):
        # There a lock may be for this host alone, and ends with the first of several processes.
        if mounts.is_over_a_network(parent):
            return directory
        descriptor = os.open(directory, _OPEN)
        try:
            # Shared with the processes that this one starts.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.rename(directory, name)
        except BaseException:
            os.close(descriptor)
            raise
        _held[name] = descriptor
        return name
    return directory


def join(directory: str) -> bool:
    """Keep the directory of the process that started this one, should it be killed; False if there is none any more."""
    if _NAME.fullmatch(os.path.basename(directory)) is None or directory in _held:
        return os.path.isdir(directory)
    with suppress(OSError):
        descriptor = os.open(directory, _OPEN)
        with suppress(OSError):  # it is being removed, or has been
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(directory)):
                _held[directory] = descriptor
                return True
        os.close(descriptor)
    return False


def leave(directory: str) -> None:
    """Unlock a directory that this process has removed."""
    descriptor = _held.pop(directory, None)
    if descriptor is not None:
        os.close(descriptor)


def reap(parent: str) -> None:
    """Remove those of this user that no living process has locked; what cannot be removed stays."""
    with suppress(OSError):
        for name in os.listdir(parent):
            if _NAME.fullmatch(name):
                with suppress(OSError):
                    _remove_if_left(os.path.join(parent, name))


def _remove_if_left(path: str) -> None:
    descriptor = os.open(path, _OPEN)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: somebody uses it
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


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
        leave(directory)


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
        reap(parent)
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
        leave(directory)


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
                return occupy(directory)
            os.rmdir(directory)
            objections.append(objection or f"{parent} is full, or no code can be loaded from there")
    raise PermissionError(f"no directory out of the reach of others can be made: {'; '.join(objections)}")


_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make(name: str, content: bytes) -> str:
    """The path of a file that holds ``content``, for as long as this process lives; it ends in ``name``.

    A library is in memory (memfd_create(2)), where no noexec mount matters: ask first. Anything else is a file in this
    process's private directory, for a process has few descriptors, and a kernel eight files. Raises OSError.
    """
    if not name.endswith(".so"):
        descriptor, path = tempfile.mkstemp(suffix=f"-{name[-200:]}", dir=of_process())
        with open(descriptor, "wb") as file:
            file.write(content)
        return path
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    # Under a name of its own: Python tells an extension module by its suffix. By pid, for child processes.
    path = os.path.join(of_process(), f"{descriptor}-{name}")
    os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", path)
    return path
