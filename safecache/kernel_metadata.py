"""What the files of a Triton kernel say of it: a name, what it was compiled for, and by which Triton.

Source: ``compile`` in triton/compiler/compiler.py, which writes ``<name>.json`` and the list ``__grp__<name>.json``. It
is the same in Triton 3.6 to 3.9. Nobody vouches for it here: it is to be shown, not to be acted on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from safecache import checks, files
from safecache.triton_place import LIST

__all__ = ["KernelMetadata", "read"]

# Bytes; Triton writes one or two thousand.
_MOST = 256 << 10
_LONGEST_TEXT = 200


class KernelMetadata(NamedTuple):
    """Empty where it is not told. ``gpu``: such as ``sm_90``; ``options``: what else is said of the compile."""

    name: str
    gpu: str = ""
    triton: str = ""
    options: tuple[tuple[str, str], ...] = ()


def read(paths: Iterable[str]) -> KernelMetadata:
    """Of the kernel with these files. Never raises for what may lie there."""
    named = {os.path.basename(path): path for path in paths}
    for name in sorted(named):
        if name.startswith(LIST):
            metadata = name.removeprefix(LIST)
            fields = _fields(named[metadata]) if metadata in named else {}
            return _described(metadata.removesuffix(".json"), fields)
    # A module that Triton has built for itself, such as cuda_utils, has no metadata.
    modules = [name for name in sorted(named) if name.endswith(".so")]
    return KernelMetadata(modules[0].split(".")[0] if modules else "")


def _fields(path: str) -> dict[str, Any]:
    try:
        content = files.read_regular(path, checks.check_regular, flags=os.O_NOFOLLOW, limit=_MOST)
        fields = json.loads(content)
    except (OSError, checks.UnusableEntry, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _described(name: str, fields: dict[str, Any]) -> KernelMetadata:
    target = fields.get("target")
    target = target if isinstance(target, dict) else {}
    architecture = _text(target.get("arch"))
    is_nvidia = target.get("backend") == "cuda" and architecture.isdecimal()
    options = ((option, _text(fields.get(option))) for option in ("num_warps", "num_stages", "num_ctas", "shared"))
    return KernelMetadata(
        _text(fields.get("name")) or name,
        f"sm_{architecture}" if is_nvidia else architecture,
        _text(fields.get("triton_version")),
        tuple((option, text) for option, text in options if text),
    )


def _text(value: object) -> str:
    return str(value)[:_LONGEST_TEXT] if isinstance(value, (str, int, float)) else ""
