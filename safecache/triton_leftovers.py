"""Directories of writers of stock Triton that died before they were done: ``tmp.pid_<pid>_<uuid>``, in a kernel's own.

Source: ``FileCacheManager.put`` in triton/runtime/cache.py, 3.6 to 3.9.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress

from safecache import temporaries

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
    with suppress(OSError), os.scandir(directory) as found:
        for item in found:
            name = _NAME.fullmatch(item.name)
            if name and item.is_dir(follow_symlinks=False) and _is_old(item) and not _lives(int(name[1])):
                shutil.rmtree(item.path, ignore_errors=True)


def _is_old(item: os.DirEntry[str]) -> bool:
    return time.time() - item.stat(follow_symlinks=False).st_mtime >= _PATIENCE


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
