"""Whether, and how, to wait until what is written would survive a loss of power: ``SAFECACHE_FSYNC``."""

from __future__ import annotations

import errno
import os

from safecache import config, filesystem, mounts

__all__ = ["is_wanted", "sync_directory"]

_READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def is_wanted(directory: str) -> bool:
    """Whether files in ``directory`` are to be synced before they get their name, and it after. Raises OSError.

    ``auto``: over a network. There errors such as a full disk are reported when data is written back, and other hosts
    may read before that.
    """
    chosen = config.current().fsync
    return chosen == "always" or (chosen == "auto" and mounts.is_over_a_network(directory))


def sync_directory(directory: str) -> None:
    """Wait until the names in ``directory`` are on the disk, where that can be waited for. Raises OSError."""
    try:
        descriptor = filesystem.open(directory, _READ_DIRECTORY)
    except PermissionError:
        return  # one to write to and not to read
    try:
        filesystem.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot, and need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        filesystem.close(descriptor)
