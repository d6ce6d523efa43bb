"""vLLM's own account of its cache keys: ``cache_key_factors.json`` in each directory of compiled artifacts.

Source: vllm/compilation/backends.py, which writes it beside ``vllm_compile_cache.py``, in
``torch_compile_cache/<hash>/rank_<rank>_<dp>/<prefix>``. The hash is of these factors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from safecache import files, groups, key_text, store
from safecache.key_differences import Difference

__all__ = ["Factors", "compare", "find"]

_FILE = "cache_key_factors.json"
_LARGEST = 8 << 20
_DEEPEST = 6


class Factors(NamedTuple):
    """Those of one directory, by their paths in the file, each in words; and when they were written."""

    directory: str
    made: float
    values: dict[str, str]


def find(root: str) -> list[Factors]:
    """The factors that lie in ``root`` or below it, those written last first."""
    found = [factors for path in _paths(root, _DEEPEST) if (factors := _read(path)) is not None]
    return sorted(found, key=lambda factors: factors.made, reverse=True)


def compare(before: Factors, after: Factors) -> list[Difference]:
    """In which factors they differ, with both values, those with the shortest names first."""
    names = sorted({*before.values, *after.values}, key=lambda name: (name.count("."), name))
    pairs = [(name, before.values.get(name, ""), after.values.get(name, "")) for name in names]
    return [Difference(_named(name), _shown(name, was), _shown(name, now)) for name, was, now in pairs if was != now]


def _named(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"env {rest}" if kind == "env" else name


def _shown(name: str, value: str) -> str:
    kind, _, rest = name.partition(".")
    return key_text.variable(rest, value) if kind == "env" and value else key_text.capped(value)


def _paths(directory: str, depth: int) -> Iterator[str]:
    for item in groups.listed(directory):
        if item.name == _FILE and item.is_file(follow_symlinks=False):
            yield item.path
        elif depth and item.is_dir(follow_symlinks=False) and not item.name.startswith("."):
            yield from _paths(item.path, depth - 1)


def _read(path: str) -> Factors | None:
    try:
        content = files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST)
        stated = json.loads(content)
        made = os.lstat(path).st_mtime
    except (OSError, store.UnusableEntry, ValueError, RecursionError):
        return None  # gone, or none of vLLM's
    return Factors(os.path.dirname(path), made, dict(_flat("", stated, _DEEPEST)))


def _flat(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth:
        for part, below in value.items():
            yield from _flat(f"{name}.{part}" if name else str(part), below, depth - 1)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, sort_keys=True)
