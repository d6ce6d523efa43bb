"""Directories of writers of stock Triton that died before they were done: ``tmp.pid_<pid>_<uuid>``, in a kernel's own.

Source: ``FileCacheManager.put`` in triton/runtime/cache.py, 3.6 to 3.9.
"""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress

from safecache import folders, temporaries

__all__ = ["is_temporary", "reap_once"]

_NAME = re.compile(r"tmp\.pid_(\d+)_[0-9a-f-]{36}")
# Seconds. They are not locked, and whether the process lives can be told on its own host alone.
_PATIENCE = 86400.0

_reaped: set[str] = set()


def is_temporary(name: str) -> bool:
    """Whether a file or directory of this name in Triton's cache is one that somebody, perhaps, still writes."""
    return _NAME.fullmatch(name) is not None or temporaries.is_temporary(name)


def reap_once(directory: str) -> None:
    """Remove those of dead writers in ``directory``, once in this process; what cannot be removed stays."""
    if directory in _reaped:
        return
    _reaped.add(directory)
    root, key = os.path.split(directory)
    with suppress(OSError), folders.opened(root, [key]) as folder:
        for name in folder.names():
            writer = _NAME.fullmatch(name)
            with suppress(OSError):
                if writer and _is_old(folder.status(name)) and not _lives(int(writer[1])):
                    folder.remove(name)


def _is_old(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime >= _PATIENCE


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
