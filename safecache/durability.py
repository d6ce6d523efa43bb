"""Whether to wait until what is written would survive a loss of power: ``SAFECACHE_FSYNC``."""

from __future__ import annotations

import functools
import re

from safecache import config, mounts

__all__ = ["is_wanted"]

# There errors such as a full disk are reported when the data is written back, and other hosts may read before.
_OVER_A_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|lustre|gpfs|beegfs|ceph|glusterfs|9p|afs|virtiofs|fuse\..*")


def is_wanted(root: str) -> bool:
    """Whether files below the cache directory ``root`` are to be synced before they get their name, and it after."""
    chosen = config.current().fsync
    return chosen == "always" or (chosen == "auto" and _is_over_a_network(root))


@functools.lru_cache(maxsize=64)
def _is_over_a_network(root: str) -> bool:
    mount = mounts.mount_of(root)
    return mount is not None and _OVER_A_NETWORK.fullmatch(mount.file_system) is not None
