"""Fixtures for programs that compile: isolated caches, damaged entries, failing file systems.

Nothing of safecache imports this.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from safecache.fs import filesystem
from safecache.places import layout

__all__ = ["DAMAGES", "damage", "entries", "failing", "isolated"]

_BY_PATH = ("open", "mkdir", "rename", "replace", "lstat", "listdir", "scandir")
_DIRECTORIES = ("dir_fd", "src_dir_fd")


def isolated(directory: str | os.PathLike[str]) -> dict[str, str]:
    """Return the environment that keeps a process's caches and keys below ``directory``, with safecache on."""
    base = os.fspath(directory)
    return {
        "XDG_CONFIG_HOME": os.path.join(base, "config"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(base, "cache"),
        "TRITON_CACHE_DIR": os.path.join(base, "triton"),
        "SAFECACHE": "1",
        "SAFECACHE_STRICT": "0",
        "SAFECACHE_TRUST": "signed",
        "SAFECACHE_KEY_FILE": "",
        "SAFECACHE_KEYRING": "",
        "SAFECACHE_NAMESPACE": "",
        "SAFECACHE_SHARED": "0",
        "SAFECACHE_LOCAL": "",
    }


def entries(cache: str | os.PathLike[str]) -> list[str]:
    """Return the paths of the AOTAutograd and FX graph entries below this cache directory. Raises OSError."""
    return [location.path for location in layout.walk(os.fspath(cache))]


def _truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip_bit(content: bytes) -> bytes:
    place = len(content) // 3
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


# What a failing or full disk, a loss of power, or an attacker can do to a file.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": _truncate,
    "empty": lambda _: b"",
    "flipped": _flip_bit,
    "garbage": lambda content: os.urandom(len(content)),
    "zeros": lambda content: bytes(len(content)),
}


def damage(path: str | os.PathLike[str], how: str) -> None:
    """Damage a file in place, in one of the ways in DAMAGES. Raises KeyError for any other, and OSError."""
    with open(path, "r+b") as file:
        content = DAMAGES[how](file.read())
        file.seek(0)
        file.write(content)
        file.truncate()


@contextmanager
def failing(call: str, error: str, below: str | os.PathLike[str], times: int | None = None) -> Iterator[None]:
    """Make a function of os, such as "rename", fail with an error such as "ENOSPC" for paths ``below``, in this block.

    Applies to torch and Triton as well as to safecache. ``times``: only this many calls fail, by default all. A call
    that takes a descriptor, such as fsync, is judged by the path of its file.
    """
    top, real, left = os.fspath(below), getattr(os, call), [times]

    def fail(first: Any, *rest: Any, **named: Any) -> Any:
        above = next((os.readlink(f"/proc/self/fd/{named[name]}") for name in _DIRECTORIES if name in named), "")
        path = os.path.join(above, first) if call in _BY_PATH else os.readlink(f"/proc/self/fd/{first}")
        ours = path.startswith(top) if call in _BY_PATH else top in path
        if not ours or left[0] == 0:
            return real(first, *rest, **named)
        if left[0] is not None:
            left[0] -= 1
        number = getattr(errno, error)
        raise OSError(number, os.strerror(number), str(first))

    with ExitStack() as stack:
        for module in (os, filesystem):
            if hasattr(module, call):
                stack.enter_context(mock.patch.object(module, call, fail))
        yield
