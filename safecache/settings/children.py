"""Children that run safecache's own code: nothing of the working directory is imported, whoever may write there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["apart"]

# Variables that name a path, or several. A part that is empty stands for the working directory.
_LISTS = re.compile(r"(PYTHON|LD_LIBRARY_|C_INCLUDE_|CPLUS_INCLUDE_|LIBRARY_)?PATH|CPATH|SAFECACHE_LOWER")
_PATHS = re.compile(r"HOME|TMPDIR|.*_(DIR|HOME|FILE|ROOT)|SAFECACHE_(LOCAL|KEYRING)")


def apart(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return options for subprocess: the working directory, and ``environ`` with its relative paths made absolute.

    CPython 3.10, which knows no PYTHONSAFEPATH, looks for modules in that working directory, which is root's.
    """
    environment = {name: _absolute(name, value) for name, value in environ.items()}
    return {"cwd": "/", "env": environment | {"PYTHONSAFEPATH": "1"}}


def _absolute(name: str, value: str) -> str:
    if _LISTS.fullmatch(name):
        return os.pathsep.join(map(os.path.abspath, filter(None, value.split(os.pathsep))))
    return os.path.abspath(value) if value and _PATHS.fullmatch(name) else value
