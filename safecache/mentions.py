"""Names in the bytes of an entry or a source: found by a search, so that nothing has to be unpickled to list it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from safecache import checks, files

__all__ = ["kernels", "keys"]

# Bytes of one file. Large entries have their graph's code, with the names of its kernels, before their constants.
_MOST = 4 << 20
# What Inductor calls the kernels that it generates, in Triton and in C++, from what all of them have in their names:
# a pattern that begins with a choice takes ten times as long.
_FUSED = re.compile(rb"fused_[A-Za-z0-9_]{1,150}")
_BEFORE = re.compile(rb"(?<![A-Za-z0-9_])(?:triton|cpp)_(?:[a-z]{1,9}_)?\Z")
_LONGEST_BEFORE = 20
# As pickle writes a text of 52 letters: SHORT_BINUNICODE and its length.
_KEY = re.compile(rb"\x8c\x34([cf][a-z2-7]{51})")


def kernels(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that these files name, in the order of their first mention. None of what cannot be read, or is no file."""
    return tuple(dict.fromkeys(name.decode() for path in paths for name in _names(_read(path))))


def _names(content: bytes) -> Iterator[bytes]:
    for found in _FUSED.finditer(content):
        before = _BEFORE.search(content, max(0, found.start() - _LONGEST_BEFORE), found.start())
        if before is not None:
            yield before[0] + found[0]


def keys(paths: Iterable[str]) -> tuple[str, ...]:
    """The cache keys of graphs and sources that these pickles hold, likewise."""
    return tuple(dict.fromkeys(key.decode() for path in paths for key in _KEY.findall(_read(path))))


def _read(path: str) -> bytes:
    try:
        return files.read_regular(path, checks.check_regular, flags=os.O_NOFOLLOW, limit=_MOST)
    except (OSError, checks.UnusableEntry):
        return b""
