"""What tells a function from another with the same name in the same line of another file: a digest of its bytecode.

Without the path of its file, so that a checkout elsewhere has the same one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["digest"]

# What a call does, in names that are the same on all Pythons, and on torch's serializable stand-in for a code object.
_FIELDS = (
    *("co_name", "co_firstlineno", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)


def digest(code: Any, module: str) -> str:
    """Of a code object, in hex, and the name of the module whose globals it uses."""
    return hashlib.sha256(json.dumps([module, _stated(code)]).encode()).hexdigest()


def _stated(value: Any) -> Any:
    """In JSON, the same in every process. Types are told apart, as 1, 1.0 and True are three constants."""
    if hasattr(value, "co_code"):
        return [[name, _stated(getattr(value, name, None))] for name in _FIELDS]
    if isinstance(value, tuple):
        return ["tuple", *map(_stated, value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(map(_stated, value), key=json.dumps)]
    return [type(value).__name__, repr(value)]
