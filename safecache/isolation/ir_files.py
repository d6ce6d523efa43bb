"""Kernels that are compiled from a file of IR: MLIR's parser, which Triton calls before all else, can crash too."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from safecache.code.triton_place import LIST
from safecache.isolation import attempts, compiling, limits
from safecache.places import layout
from safecache.tiers import layers

__all__ = ["Ahead", "ahead"]

# What Triton takes from the text: IRSource.parse_options, 3.6 to 3.9.
# And what it calls the kernel: its first function that is not private.
_ENTRY = re.compile(r'\btt\.func\s+(?:public\s+)?@"?([^\s"(]+)')
_WARPS, _CTAS = re.compile(r'"ttg\.num-warps" = (\d+)'), re.compile(r'"ttg\.num-ctas" = (\d+)')
_PARSED = ("ttir", "ttgir", "glir")


class Ahead(NamedTuple):
    """A compile that is to come before Triton reads the file. ``directory``: where its files are to lie."""

    request: attempts.Request
    variables: Any
    directory: str
    manager: compiling.Manager

    @property
    def name(self) -> str:
        """What Triton calls the kernel."""
        found = _ENTRY.search(self.request.source.src)
        return f"@{found[1]}" if found is not None else str(self.request.source.name)

    def make(self, *, tuning: bool) -> compiling.Made | None:
        """Have the kernel in Triton's cache; None if it cannot be compiled apart: then Triton reads the file here.

        Raises TritonCompileCrash, and Triton's PTXASError.
        """
        return compiling.obtain(
            self.request, os.path.dirname(self.directory), limits.current(tuning=tuning), self.manager
        )


def ahead(path: str, target: Any, options: dict[str, Any] | None, variables: Any) -> Ahead | None:
    """What is to be compiled before; None for what the cache has, or what cannot be compiled apart."""
    compiler = sys.modules["triton.compiler.compiler"]
    source = _unparsed(compiler, path)
    if source is None:
        return None
    backend = compiler.make_backend(target or compiler.driver.active.get_current_target())
    parsed = backend.parse_options({**(options or {}), **_stated(source)})
    variables = compiler.get_cache_invalidating_env_vars() if variables is None else variables
    key = sys.modules["triton.runtime.cache"].get_cache_key(source, backend, parsed, variables)
    request = attempts.Request(source, backend, parsed, key, metadata="")
    manager = compiler.get_cache_manager(request.hash)
    directory = getattr(getattr(manager, "_file_cache_manager", manager), "cache_dir", "")
    # Whoever has put it there has parsed it.
    if not directory or _is_there(directory) or compiling.stays(source.name):
        return None
    return Ahead(request, variables, directory, manager)


def _is_there(directory: str) -> bool:
    places = [directory, *(place for place, _ in layers.below(directory, os.path.dirname(directory)))]
    return any(name.startswith(LIST) for place in places for name in _names_in(place))


def _names_in(place: str) -> list[str]:
    try:
        return layout.list_entries(place)
    except OSError:
        return []  # whoever looks it up says so


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
