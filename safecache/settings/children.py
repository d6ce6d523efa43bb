"""Environments of children that run safecache's own code: they import nothing from the working directory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

__all__ = ["add_package", "make_options"]

# Variables that name a path, or several. A part that is empty stands for the working directory.
_LISTS = re.compile(r"(PYTHON|LD_LIBRARY_|C_INCLUDE_|CPLUS_INCLUDE_|LIBRARY_)?PATH|CPATH")
_PATHS = re.compile(r"HOME|TMPDIR|.*_(DIR|HOME|FILE|ROOT)|SAFECACHE_KEYRING|TRITON_.*_PATH|CUDA_PATH")
# A compiler, which its arguments may follow. Its name alone is looked for in PATH.
_COMMANDS = re.compile(r"CC|CXX|CUDACXX")

# Where the package lies.
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def make_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return options for subprocess: the working directory, and ``environ`` with its relative paths made absolute.

    CPython 3.10, which knows no PYTHONSAFEPATH, looks for modules in that working directory, which is root's. Where
    this process looks for modules in a checkout first (``python -m safecache``), the child looks there too.
    """
    environment = {name: _make_absolute(name, value) for name, value in environ.items()}
    with suppress(OSError):  # a working directory that was removed
        if _CHECKOUT in map(os.path.abspath, sys.path[:1]):
            environment = add_package(environment)
    return {"cwd": "/", "env": environment | {"PYTHONSAFEPATH": "1"}}


def add_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of ``environ`` in which a child can import this package, as the last place of PYTHONPATH."""
    paths = (environ.get("PYTHONPATH"), _CHECKOUT)
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _make_absolute(name: str, value: str) -> str:
    if _COMMANDS.fullmatch(name):
        program, *rest = value.split(maxsplit=1) or [""]
        return " ".join([os.path.abspath(program), *rest]) if os.sep in program else value
    if _LISTS.fullmatch(name):
        return os.pathsep.join(map(os.path.abspath, filter(None, value.split(os.pathsep))))
    return os.path.abspath(value) if value and _PATHS.fullmatch(name) else value
