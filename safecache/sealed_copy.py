"""Copies that nobody can change any more, for what lies where others could replace it between a check and its use."""

from __future__ import annotations

import fcntl
import os

from safecache import private_directory

__all__ = ["make"]

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def make(name: str, content: bytes) -> str:
    """The path of a file that holds ``content``, for as long as this process lives; it ends in ``name``.

    The content is in memory (memfd_create(2)), where no noexec mount matters: ask first, if it is code. Raises OSError.
    """
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    # Under a name of its own: Python tells an extension module by its suffix. By pid, for child processes.
    path = os.path.join(private_directory.of_process(), f"{descriptor}-{name}")
    os.symlink(f"/proc/{os.getpid()}/fd/{descriptor}", path)
    return path
