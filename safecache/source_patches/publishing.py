"""Replaces files, all of them or none; each as a whole, so that whoever is killed in between has one or the other.

A file that replaces another is a new one: another name of the old one, such as a package installer's cache keeps,
still has the old content. git apply, or patch, makes the new content, of one file at a time in a directory of its own:
neither sees what lies around the target.
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
    """What git calls a file of this content."""
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def run(content: bytes, diff: bytes, path: str, *, reverse: bool = False) -> bytes | None:
    """``content``, which is that of the file ``path`` in the diff, patched; None if the diff does not apply to it.

    Raises SourcePatchError if there is neither git nor patch.
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
    """No repository around the directory, and no configuration of the user, has a say in it."""
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
    """A file that is to have other content than it has."""

    path: str
    old: bytes
    new: bytes


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """Wait for others who patch what lies in this directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Not every file system has locks; what two at a time leave behind is recognised, and can be finished.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def publish(changes: Sequence[Change]) -> None:
    """Make these changes. Raises OSError or SourcePatchError, all files being as they were, if one cannot be made."""
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
    """Remove what somebody who was killed has left there; nobody else is at it, where there are locks."""
    for left in glob.glob(os.path.join(glob.escape(directory), f"{_PREFIX}*")):
        os.unlink(left)


def _stage(path: str, content: bytes) -> str:
    """A file beside ``path`` with this content, and its mode and owner."""
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
    # Gone first: Python takes some of them for the file's whatever the file is by then.
    compiled = cache_from_source(path)
    was_compiled = os.path.exists(compiled)
    stem = os.path.join(os.path.dirname(path), "__pycache__", os.path.basename(path).removesuffix(".py"))
    for stale in glob.glob(f"{glob.escape(stem)}.*.pyc"):
        os.unlink(stale)
    done.append(change)
    os.replace(temporary, path)
    if was_compiled:
        # By whoever may write there: for others each import would compile it anew.
        with contextlib.suppress(OSError, py_compile.PyCompileError):
            py_compile.compile(path, doraise=True)
