"""Names in the bytes of an entry or a source: found by a search, so that nothing has to be unpickled to list it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from safecache import files, store

__all__ = ["Mentions", "search"]

# Bytes of one file. Large entries have their graph's code, with the names of its kernels, before their constants.
_MOST = 4 << 20
# What Inductor calls the kernels that it generates, in Triton and in C++.
_KERNEL = re.compile(rb"(?<![A-Za-z0-9_])(?:triton|cpp)_(?:[a-z]+_)?fused_[A-Za-z0-9_]{1,150}")
_KEY = re.compile(rb"(?<![a-z0-9])[cf][a-z2-7]{51}(?![a-z0-9])")


class Mentions(NamedTuple):
    """In the order of their first mention: ``kernels`` by name, graphs and sources by their cache ``keys``."""

    kernels: tuple[str, ...]
    keys: tuple[str, ...]


def search(paths: Iterable[str]) -> Mentions:
    """In these files. Nothing is found in what cannot be read, or is no file."""
    kernels: dict[str, None] = {}
    keys: dict[str, None] = {}
    for path in paths:
        content = _read(path)
        kernels |= dict.fromkeys(name.decode() for name in _KERNEL.findall(content))
        keys |= dict.fromkeys(key.decode() for key in _KEY.findall(content))
    return Mentions(tuple(kernels), tuple(keys))


def _read(path: str) -> bytes:
    try:
        return files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW, limit=_MOST)
    except (OSError, store.UnusableEntry):
        return b""
