"""git apply, or patch, on one file at a time, in a directory of its own: neither sees what lies around the target."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from hashlib import sha1

from safecache.errors import SourcePatchError
from safecache.settings import config

__all__ = ["blob_id", "run"]

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
