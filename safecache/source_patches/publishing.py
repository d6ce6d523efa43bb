"""Replaces files, all or none, each atomically: a process killed midway leaves every file old or new, never torn.

A replaced file is a new inode: a hard link to the old one, such as in a package installer's cache, keeps the old
content. git apply, or patch, makes the new content of one file at a time in a directory of its own, where it sees
nothing that surrounds the target.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import py_compile
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha1
from importlib.util import cache_from_source
from typing import NamedTuple

from safecache.errors import SourcePatchError
from safecache.settings import config

__all__ = ["Change", "blob_id", "locked", "publish", "remove_leftovers", "run"]

_DIFF = "change.diff"


def blob_id(content: bytes) -> str:
    """Git's id of a file with this content."""
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def run(content: bytes, diff: bytes, path: str, *, reverse: bool = False) -> bytes | None:
    """``content``, that of the file ``path`` in the diff, with the diff applied; None if it does not apply.

    Raises SourcePatchError if neither git nor patch is installed, and OSError.
    """
    with tempfile.TemporaryDirectory(prefix="safecache-patch-") as directory:
        place = os.path.join(directory, path)
        os.makedirs(os.path.dirname(place))
        for name, written in ((place, content), (os.path.join(directory, _DIFF), diff)):
            with open(name, "wb") as file:
                file.write(written)
        done = subprocess.run(
            [*_command(), *(["-R"] if reverse else [])],
            cwd=directory,
            env=_environment(directory),
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if done.returncode != 0:
            return None
        with open(place, "rb") as file:
            return file.read()


def _command() -> list[str]:
    git, patch = shutil.which("git"), shutil.which("patch")
    if git is not None:
        return [git, "apply", "--unidiff-zero", "--whitespace=nowarn", _DIFF]
    if patch is not None:
        return [patch, "-p1", "--fuzz=0", "--force", "--binary", "--no-backup-if-mismatch", f"--input={_DIFF}"]
    raise SourcePatchError("neither git nor patch is installed, with one of which the patches are applied")


def _environment(directory: str) -> dict[str, str]:
    """An environment in which neither a surrounding repository nor the user's configuration affects git or patch."""
    own = {
        "GIT_CEILING_DIRECTORIES": os.path.dirname(os.path.realpath(directory)),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
    }
    return {
        name: value for name, value in config.child_environment().items() if not name.startswith(("GIT_", "PATCH_"))
    } | own


_PREFIX = ".safecache-patch-"


class Change(NamedTuple):
    """A file whose content is to be replaced."""

    path: str
    old: bytes
    new: bytes


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """Hold the directory's lock, waiting for others who patch packages in it. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Not every file system has locks. What two concurrent runs leave behind is recognised, and can be completed.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def publish(changes: Sequence[Change]) -> None:
    """Make these changes. If one cannot be made, raises OSError or SourcePatchError, with all files as they were."""
    staged: dict[str, str] = {}
    done: list[Change] = []
    try:
        for change in changes:
            staged[change.path] = _stage(change.path, change.new)
        for change in changes:
            _check(change)
        for change in changes:
            _replace(change.path, staged[change.path], done, change)
    except BaseException:
        for change in reversed(done):
            os.replace(_stage(change.path, change.old), change.path)
        raise
    finally:
        for temporary in staged.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def remove_leftovers(directory: str) -> None:
    """Remove the temporary files of a killed run. To be called under locked(). Raises OSError."""
    for left in glob.glob(os.path.join(glob.escape(directory), f"{_PREFIX}*")):
        os.unlink(left)


def _stage(path: str, content: bytes) -> str:
    """Write a file beside ``path`` with this content and the mode and owner of ``path``; return its path."""
    status = os.stat(path)
    descriptor, temporary = tempfile.mkstemp(prefix=_PREFIX, dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _check(change: Change) -> None:
    with open(change.path, "rb") as file:
        if file.read() != change.old:
            raise SourcePatchError(f"{change.path} was changed by somebody else just now")


def _replace(path: str, temporary: str, done: list[Change], change: Change) -> None:
    # Removed first: Python uses some .pyc files without comparing them with the source.
    compiled = cache_from_source(path)
    was_compiled = os.path.exists(compiled)
    stem = os.path.join(os.path.dirname(path), "__pycache__", os.path.basename(path).removesuffix(".py"))
    for stale in glob.glob(f"{glob.escape(stem)}.*.pyc"):
        os.unlink(stale)
    done.append(change)
    os.replace(temporary, path)
    if was_compiled:
        # For users who cannot write there, and would otherwise recompile it at each import.
        with contextlib.suppress(OSError, py_compile.PyCompileError):
            py_compile.compile(path, doraise=True)
