"""Kernels that are compiled from a file of IR: MLIR's parser, which Triton calls before all else, can crash too."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from safecache import store
from safecache.isolation import compiling, limits
from safecache.triton_place import LIST

__all__ = ["prepare"]

# What Triton takes from the text: IRSource.parse_options, 3.6 to 3.9.
_WARPS, _CTAS = re.compile(r'"ttg\.num-warps" = (\d+)'), re.compile(r'"ttg\.num-ctas" = (\d+)')
_PARSED = ("ttir", "ttgir", "glir")


def prepare(
    path: str, target: Any, options: dict[str, Any] | None, variables: Any, tuning: bool
) -> compiling.Made | None:
    """Have the kernel in Triton's cache, unless it is, or cannot be compiled apart: then Triton reads the file here.

    Raises TritonCompileCrash, and Triton's PTXASError.
    """
    compiler = sys.modules["triton.compiler.compiler"]
    source = _unparsed(compiler, path)
    if source is None:
        return None
    backend = compiler.make_backend(target or compiler.driver.active.get_current_target())
    parsed = backend.parse_options({**(options or {}), **_stated(source)})
    variables = compiler.get_cache_invalidating_env_vars() if variables is None else variables
    key = sys.modules["triton.runtime.cache"].get_cache_key(source, backend, parsed, variables)
    request = compiling.Request(source, backend, parsed, key, metadata="")
    manager = compiler.get_cache_manager(request.hash)
    directory = getattr(getattr(manager, "_file_cache_manager", manager), "cache_dir", "")
    # Whoever has put it there has parsed it.
    has_group = directory and any(name.startswith(LIST) for name in store.list_entries(directory))
    if not directory or has_group or compiling.stays(source.name):
        return None
    return compiling.obtain(request, os.path.dirname(directory), limits.current(tuning=tuning), manager)


def _unparsed(compiler: Any, path: str) -> Any:
    """An IRSource as far as it is without a parse; None for what is not parsed, or cannot be read."""
    source = object.__new__(compiler.IRSource)
    source.path, source.ext = path, Path(path).suffix[1:]
    if source.ext not in _PARSED:
        return None
    try:
        source.src = Path(path).read_text()
    except (OSError, ValueError):
        return None  # which Triton says, too
    languages = sys.modules["triton.backends.compiler"].Language
    source.language = languages.GLUON if source.ext == "glir" else languages.TRITON
    source.name, source.signature = Path(path).name, {}
    return source


def _stated(source: Any) -> dict[str, int]:
    found = {"num_warps": _WARPS.search(source.src), "num_ctas": _CTAS.search(source.src)}
    return {} if source.ext == "ttir" else {name: int(match[1]) for name, match in found.items() if match}
