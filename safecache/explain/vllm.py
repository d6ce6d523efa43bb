"""vLLM's own account of its cache keys: ``cache_key_factors.json`` in each directory of compiled artifacts.

Source: vllm/compilation/backends.py, which writes it beside ``vllm_compile_cache.py``, in
``torch_compile_cache/<hash>/rank_<rank>_<dp>/<prefix>``; the hash is of these factors, so all ranks have the same.
``compile_factors`` and ``environment_variables`` in vllm/envs.py. The same in vLLM 0.26 to 0.33.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from safecache.explain import key_records
from safecache.explain.explanations import Difference
from safecache.files import checks, folders, opening

__all__ = ["Factors", "compare", "find", "nearest", "place"]

_FILE = "cache_key_factors.json"
_LARGEST = 8 << 20
_DEEPEST = 6
# The caches of torch and Triton that it keeps there too: large, and without such files.
_OTHERS = ("inductor_cache", "triton_cache")


class Factors(NamedTuple):
    """Those of one directory, by their paths in the file, each as JSON; and when they were written."""

    directory: str
    made: float
    values: dict[str, str]

    @property
    def prefix(self) -> str:
        """Which part of a model they are of: vLLM compiles a draft model beside the model itself."""
        return os.path.basename(self.directory)


def place(environ: Mapping[str, str]) -> str:
    """Where vLLM keeps what it compiles, whether that exists or not."""
    caches = environ.get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))
    root = environ.get("VLLM_CACHE_ROOT", os.path.join(caches, "vllm"))
    return os.path.join(os.path.abspath(os.path.expanduser(root)), "torch_compile_cache")


def find(root: str) -> list[Factors]:
    """The factors that lie in ``root`` or below it, those written last first; of the ranks of one key only one's."""
    found = sorted(
        filter(None, map(_read, _paths(root, _DEEPEST))), key=lambda factors: (factors.made, factors.directory)
    )
    of_keys = {(os.path.dirname(os.path.dirname(each.directory)), each.prefix): each for each in reversed(found)}
    return sorted(of_keys.values(), key=lambda factors: factors.made, reverse=True)


def nearest(after: Factors, others: list[Factors]) -> Factors | None:
    """Of ``others`` the one with the fewest differences, the latest of such; None if none is of the same part."""
    candidates = [other for other in others if other.prefix == after.prefix]
    return min(candidates, key=lambda other: (len(_changed(other, after)), -other.made), default=None)


def compare(before: Factors, after: Factors) -> list[Difference]:
    """In which factors they differ, with both values, those with the shortest names first."""
    names = sorted(_changed(before, after), key=lambda name: (name.count("."), name))
    return [Difference(_named(name), _shown(name, before), _shown(name, after)) for name in names]


def _changed(before: Factors, after: Factors) -> set[str]:
    return {name for name, _ in before.values.items() ^ after.values.items()}


def _named(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"env {rest}" if kind == "env" else name


def _shown(name: str, factors: Factors) -> str:
    stated = factors.values.get(name, "")
    # Among vLLM's settings what is no text is no secret, whatever its name: numbers of tokens, switches.
    is_text = stated.startswith('"') and stated != '""'
    return key_records.setting(name, json.loads(stated)) if is_text else key_records.capped(stated)


def _paths(directory: str, depth: int) -> Iterator[str]:
    for item in folders.listed(directory):
        if item.name == _FILE and item.is_file:
            yield item.path
        elif depth and item.is_directory and not item.name.startswith(".") and item.name not in _OTHERS:
            yield from _paths(item.path, depth - 1)


def _read(path: str) -> Factors | None:
    try:
        content = opening.read_regular(path, checks.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST)
        # Both ways through JSON: what can just be read may be nested too deeply to be written.
        values = dict(_flat("", json.loads(content), _DEEPEST))
        made = folders.status(path).st_mtime
    except (OSError, checks.UnusableEntry, ValueError, RecursionError):
        return None  # gone, or none of vLLM's
    return Factors(os.path.dirname(path), made, values)


def _flat(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth:
        for part, below in value.items():
            yield from _flat(f"{name}.{part}" if name else str(part), below, depth - 1)
    else:
        yield name, json.dumps(value, sort_keys=True)
