"""Private directories, which only this user and root can enter or replace, locked while in use; immutable copies."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from safecache.fs import filesystem, folders, mounts, ownership
from safecache.fs.folders import Folder
from safecache.session import call_at_exit

__all__ = [
    "create_lasting",
    "create_temporary",
    "get_process_directory",
    "get_run_directory",
    "join",
    "leave",
    "make_copy",
    "occupy",
    "reap",
    "write",
]

_PREFIX = "safecache-live-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Inherited by forked children, which so keep their parent's locks.
_held: dict[str, int] = {}


# What says in a directory that it is one of these, by its device and inode. Only its owner can put that there.
_RECORD = ".safecache-live"


def occupy(directory: str) -> str:
    """Lock a directory that this process has just created, until the process ends; return the directory's new path.

    A directory that cannot be locked keeps its path, so that reap() never takes it for one left behind.
    """
    parent = os.path.dirname(directory)
    name = os.path.join(parent, f"{_PREFIX}{secrets.token_hex(8)}")
    with suppress(OSError):
        # There a lock may apply to this host only, and end with the first of several processes.
        if mounts.is_over_a_network(parent):
            return directory
        descriptor = os.open(directory, _OPEN)
        try:
            # Shared with the processes that this one starts.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            Folder(descriptor, directory).write(_RECORD, _encode_identity(os.fstat(descriptor)))
            os.rename(directory, name)
        except BaseException:
            os.close(descriptor)
            raise
        _held[name] = descriptor
        return name
    return directory


def join(directory: str) -> bool:
    """Lock the parent process's ``directory``, so that it outlives a killed parent; False if it no longer exists."""
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


def get_run_directory(run: str) -> str:
    """Return the directory that all processes of the run share: the first one creates it, the last one removes it.

    ``run``: name of the run. Another user who guesses that name can only keep the run from using that directory. Raises
    PermissionError if no place is out of the reach of others.
    """
    name = f"{_PREFIX}{hashlib.sha256(f'{os.geteuid()} {run}'.encode()).hexdigest()[:16]}"
    for parent in _list_parents():
        directory = os.path.join(parent, name)
        with suppress(OSError):
            if directory in _held:
                return directory
            if mounts.is_over_a_network(parent):
                continue
            reap(parent)
            with suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            if ownership.find_exposure(directory, unknown=True) is None and join(directory):
                with suppress(FileExistsError):
                    Folder(_held[directory], directory).write(_RECORD, _encode_identity(os.fstat(_held[directory])))
                call_at_exit(functools.partial(_remove_last, directory, os.getpid()))
                return directory
    raise PermissionError(f"the processes of run {run} have no directory out of the reach of others")


def _remove_last(directory: str, pid: int) -> None:
    """Remove ``directory`` unless another process has locked it too."""
    if os.getpid() == pid:
        leave(directory)
        with suppress(OSError), folders.open_subdirectory(os.path.dirname(directory)) as folder:
            _remove_if_left(folder, os.path.basename(directory))


def leave(directory: str) -> None:
    """Unlock a directory that this process has removed."""
    descriptor = _held.pop(directory, None)
    if descriptor is not None:
        os.close(descriptor)


def reap(parent: str) -> None:
    """Remove this user's directories in ``parent`` that no living process has locked. Raises no OSError.

    Removes only directories that this module has made, and only where nobody else could have replaced one by another.
    """
    with suppress(OSError), folders.open_subdirectory(parent) as folder:
        for name in folder.list_names():
            if _NAME.fullmatch(name) and ownership.find_exposure(os.path.join(parent, name), unknown=True) is None:
                with suppress(OSError):
                    _remove_if_left(folder, name)


def _remove_if_left(above: Folder, name: str) -> None:
    descriptor = above.open(name, _OPEN)
    try:
        status, left = os.fstat(descriptor), Folder(descriptor, name)
        if (
            status.st_uid != os.geteuid()
            or stat.S_IMODE(status.st_mode) & 0o077
            or _read_unverified(left) != _encode_identity(status)
        ):
            return
        if not filesystem.try_lock(descriptor):
            return  # somebody uses it
        # The record last: what is left of it is removed by the next who comes.
        for each in sorted(left.list_names(), key=_RECORD.__eq__):
            with suppress(OSError):
                left.remove(each)
        above.rmdir(name)
    finally:
        os.close(descriptor)


def _encode_identity(status: os.stat_result) -> bytes:
    return f"{status.st_dev} {status.st_ino}".encode()


def _read_unverified(folder: Folder) -> bytes:
    descriptor = folder.open(_RECORD, os.O_RDONLY)
    try:
        return filesystem.pread(descriptor, 64, 0)
    finally:
        os.close(descriptor)


# A Kubernetes emptyDir mounted at /tmp has mode 0777 and is not sticky: anybody can rename what lies in it.
# Memory comes last: a container has 64 MB of it there.
_OTHER_PARENTS = ("/var/tmp", "/dev/shm")


@contextmanager
def create_temporary() -> Iterator[str]:
    """Create a private directory (mode 0700) for this block, yield its path, and remove it after the block.

    Raises PermissionError if none can be created.
    """
    directory = _make_directory()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        leave(directory)


def get_process_directory() -> str:
    """Return the path of this process's own private directory, removed at its end. Raises as create_temporary()."""
    return _make_for_process(os.getpid())


def write(name: str, content: bytes) -> str:
    """Write ``content`` to a new private file called ``name``, and return its path. Removed when the process ends.

    The file is in memory (/dev/shm) if the disk is full. Raises OSError, leaving nothing behind.
    """
    try:
        return _write_file(get_process_directory(), name, content)
    except OSError:
        return _write_file(_make_for_process(os.getpid(), _OTHER_PARENTS[::-1]), name, content)


def _write_file(parent: str, name: str, content: bytes) -> str:
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
def _make_for_process(pid: int, parents: tuple[str, ...] = ()) -> str:
    return _remove_at_end(_make_directory(parents=parents), pid)


def create_lasting(is_fit: Callable[[str], bool]) -> str:
    """Create a private directory that ``is_fit`` accepts, and return its path. It is removed when this process ends.

    Directories left behind by killed processes are removed first. Raises as create_temporary() does.
    """
    for parent in _list_parents():
        reap(parent)
    return _remove_at_end(_make_directory(is_fit), os.getpid())


def _remove_at_end(directory: str, pid: int) -> str:
    call_at_exit(functools.partial(_remove_directory, directory, pid))
    return directory


def _remove_directory(directory: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
        leave(directory)


def _list_parents() -> tuple[str, ...]:
    return tempfile.gettempdir(), *_OTHER_PARENTS


def _make_directory(is_fit: Callable[[str], bool] = os.path.isdir, parents: tuple[str, ...] = ()) -> str:
    objections = []
    for parent in parents or _list_parents():
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix="safecache-", dir=parent)
            # If root is not mapped, its directories count as anybody's, and so would any created below them.
            objection = ownership.find_exposure(directory, unknown=True)
            if objection is None and is_fit(directory):
                return occupy(directory)
            os.rmdir(directory)
            objections.append(objection or f"{parent} is full, or no code can be loaded from there")
    raise PermissionError(f"no directory out of the reach of others can be made: {'; '.join(objections)}")


_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make_copy(name: str, content: bytes) -> str:
    """Write ``content`` to a private file, and return a path to it that ends in ``name``, valid until the process ends.

    A library (``.so``) is in memory (memfd_create(2)), which bypasses noexec: callers check that first. Anything else
    is a file in process_directory(): a process has few descriptors, and a kernel eight files. Raises OSError.
    """
    if not name.endswith(".so"):
        descriptor, path = tempfile.mkstemp(suffix=f"-{name[-200:]}", dir=get_process_directory())
        with open(descriptor, "wb") as file:
            file.write(content)
        return path
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    # Under its own name: Python recognises an extension module by its suffix. By pid, for child processes.
    path = os.path.join(get_process_directory(), f"{descriptor}-{name}")
    os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", path)
    return path
