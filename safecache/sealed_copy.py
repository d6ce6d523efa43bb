"""Copies that nobody can change any more, for what lies where others could replace it between a check and its use."""

from __future__ import annotations

import fcntl
import os
import tempfile

from safecache import private_directory

__all__ = ["make"]

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make(name: str, content: bytes) -> str:
    """The path of a file that holds ``content``, for as long as this process lives; it ends in ``name``.

    A library is in memory (memfd_create(2)), where no noexec mount matters: ask first. Anything else is a file in this
    process's private directory, for a process has few descriptors, and a kernel eight files. Raises OSError.
    """
    if not name.endswith(".so"):
        descriptor, path = tempfile.mkstemp(suffix=f"-{name[-200:]}", dir=private_directory.of_process())
        with open(descriptor, "wb") as file:
            file.write(content)
        return path
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    # Under a name of its own: Python tells an extension module by its suffix. By pid, for child processes.
    path = os.path.join(private_directory.of_process(), f"{descriptor}-{name}")
    os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", path)
    return path
