"""Recognises planted code, by its marker, in what Python's audit events say is unpickled, compiled, executed or loaded."""

from __future__ import annotations

import sys
from types import CodeType

# Every library and source that the tests plant has the name of this variable in it: it says which file to leave.
MARKER = "TROJAN_MARKER"
# What the pickles that they plant look up, and no genuine one does: see faults.damage.Marker.
LOOKED_UP = (open.__module__, open.__name__)


def watch() -> list[str]:
    """What of it this process does from now on, as it happens. There is no way to stop watching (PEP 578)."""
    seen: list[str] = []

    def hook(event: str, arguments: tuple) -> None:
        if event in _WATCHED and _WATCHED[event](arguments):
            seen.append(f"{event} {arguments!r:.300}")

    sys.addaudithook(hook)
    return seen


def _looks_up(arguments: tuple) -> bool:
    return arguments[:2] == LOOKED_UP


def _is_source(arguments: tuple) -> bool:
    source = arguments[0]
    return MARKER in source if isinstance(source, str) else isinstance(source, bytes) and MARKER.encode() in source


def _is_code(arguments: tuple) -> bool:
    return isinstance(arguments[0], CodeType) and MARKER in arguments[0].co_consts


def _is_library(path: object) -> bool:
    if not isinstance(path, (str, bytes)):
        return False
    try:
        with open(path, "rb") as file:
            return MARKER.encode() in file.read()
    except (OSError, ValueError):
        return False


_WATCHED = {
    "pickle.find_class": _looks_up,
    "compile": _is_source,
    "exec": _is_code,
    "ctypes.dlopen": lambda arguments: _is_library(arguments[0]),
    # Of an extension module: its name, and its file.
    "import": lambda arguments: _is_library(arguments[1]),
}
