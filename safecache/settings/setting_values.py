"""What the values of settings mean; each function raises ValueError for one that it does not take."""

from __future__ import annotations

import os

from safecache.settings import units

# Not from typing: importing that would be half of what `import safecache` costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LEAST_COMPILE_MEMORY",
    "LONGEST_NAMESPACE",
    "LONGEST_TIME",
    "WORKERS",
    "compile_memory",
    "compile_timeout",
    "isolate",
    "namespace",
    "one_of",
    "path",
    "paths",
    "seconds",
    "switch",
]

# A value of SAFECACHE_ISOLATE.
WORKERS = "workers"
# Bytes. With less, sound compiles of large kernels fail.
LEAST_COMPILE_MEMORY = 10**9
LONGEST_NAMESPACE = 128
_NAMESPACE_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-")
# Seconds.
LONGEST_TIME = 86400.0
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def switch(text: str) -> bool:
    """On or off."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(text)


def one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    """Takes one of these words, in either case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return parse


def path(text: str) -> str:
    """An absolute path."""
    if not os.path.isabs(text):
        raise ValueError(text)
    return text


def paths(text: str) -> tuple[str, ...]:
    """Absolute paths, with colons between them."""
    return tuple(path(each) for each in text.split(os.pathsep) if each)


def seconds(text: str) -> float:
    """From 0 on."""
    seconds = float(text)
    if not 0 <= seconds <= LONGEST_TIME:
        raise ValueError(text)
    return seconds


def compile_timeout(text: str) -> float:
    """Seconds, from 1 on."""
    seconds = float(text)
    if not 1 <= seconds <= LONGEST_TIME:
        raise ValueError(text)
    return seconds


def compile_memory(text: str) -> int:
    """Bytes, with a unit or without."""
    size = units.parse_size(text)
    if size < LEAST_COMPILE_MEMORY:
        raise ValueError(text)
    return size


def isolate(text: str) -> bool | str:
    """A switch, or WORKERS."""
    return WORKERS if text.strip().lower() == WORKERS else switch(text)


def namespace(text: str) -> str:
    """Letters that a namespace may have."""
    if len(text) > LONGEST_NAMESPACE or not set(text) <= _NAMESPACE_LETTERS:
        raise ValueError(text)
    return text
