"""Whether, and how, to wait until what is written would survive a loss of power: ``SAFECACHE_FSYNC``."""

from __future__ import annotations

from safecache import config
from safecache.folders import Folder

__all__ = ["is_wanted"]


def is_wanted(folder: Folder) -> bool:
    """Whether files in ``folder`` are to be synced before they get their name, and it after. Raises OSError.

    ``auto``: over a network. There errors such as a full disk are reported when data is written back, and other hosts
    may read before that.
    """
    chosen = config.current().fsync
    return chosen == "always" or (chosen == "auto" and folder.is_over_a_network)
