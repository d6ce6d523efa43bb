"""What is compiled, in the words of a crash report: the kernel and its options, and nothing else of this process."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from safecache._version import __version__

__all__ = ["config_of", "describe", "options_of", "source_of"]


def config_of(source: Any, options: Any) -> dict[str, Any]:
    """What an autotuner varies: warps, stages, and the constants by name."""
    named = {name: getattr(options, name) for name in ("num_warps", "num_stages", "num_ctas") if hasattr(options, name)}
    return named | {name: _plain(value) for name, value in _constants(source).items()}


def describe(source: Any, target: Any, options: Any) -> dict[str, Any]:
    """All of it, JSON-able."""
    function = getattr(source, "fn", None)
    code = getattr(getattr(function, "fn", None), "__code__", None)
    return {
        "kernel": source.name,
        "file": getattr(source, "path", None) or getattr(code, "co_filename", None),
        "line": getattr(function, "starting_line_number", None),
        "signature": {str(name): _plain(kind) for name, kind in source.signature.items()},
        "constants": {name: _plain(value) for name, value in _constants(source).items()},
        "attributes": _plain(getattr(source, "attrs", None)),
        "target": {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size},
        "options": {name: _plain(value) for name, value in vars(options).items()},
        "versions": {
            "triton": importlib.metadata.version("triton"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "safecache": __version__,
        },
    }


def options_of(options: Any) -> dict[str, Any]:
    """Those whose repr() is an expression that gives them again."""
    return {name: value for name, value in vars(options).items() if _is_literal(value)}


def source_of(source: Any) -> str:
    """The text of the kernel, as its author wrote it or as IR."""
    return str(getattr(source, "src", "") or getattr(getattr(source, "fn", None), "src", ""))


def _constants(source: Any) -> dict[str, Any]:
    names = getattr(getattr(source, "fn", None), "arg_names", ())
    constants = getattr(source, "constants", {})
    return {".".join([names[path[0]], *map(str, path[1:])]): value for path, value in constants.items()}


def _is_literal(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_literal, value))
    if isinstance(value, dict):
        return all(_is_literal(part) for pair in value.items() for part in pair)
    return value is None or isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
