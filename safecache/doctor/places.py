"""The directories that a compile uses under an environment, whether they exist or not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from safecache.loads import failures
from safecache.places import layout
from safecache.settings import config
from safecache.tiers import levels

__all__ = ["Place", "by", "caches", "elsewhere", "nearest", "of"]


class Place(NamedTuple):
    """``noun``: what to call it to a person; ``variable``: what moves it elsewhere."""

    noun: str
    path: str
    variable: str
    is_cache: bool = True

    def __str__(self) -> str:
        return f"{self.noun} {self.path}"


def of(environ: Mapping[str, str]) -> list[Place]:
    """The caches, the directory of keys and the temporary one, as far as they can be told."""
    found = caches(environ)
    settings = config.current()
    if settings.key_file is None and settings.config_home is not None:
        keys = os.path.join(settings.config_home, "safecache")
        found.append(Place("the directory of keys", keys, "XDG_CONFIG_HOME", is_cache=False))
    with suppress(FileNotFoundError):  # there is none that can be written: that is a finding of its own
        found.append(Place("the temporary directory", tempfile.gettempdir(), "TMPDIR", is_cache=False))
    return found


def caches(environ: Mapping[str, str]) -> list[Place]:
    """Those of Inductor and of Triton, and the level of this node before the first."""
    found = []
    with suppress(FileNotFoundError):
        inductors = layout.of_inductor(environ)
        found.append(Place("Inductor's cache", inductors, "TORCHINDUCTOR_CACHE_DIR"))
        local = levels.place_of(inductors)
        if local is not None:
            found.append(Place("the local level", local, "SAFECACHE_LOCAL"))
    found.append(Place("Triton's cache", os.path.abspath(layout.of_triton(environ)), "TRITON_CACHE_DIR"))
    return found


def nearest(path: str) -> str:
    """``path``, or else the directory above it that exists: what decides whether it can be made."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def elsewhere(variable: str) -> str:
    """A line with which ``variable`` names a directory that can be written to and code loaded from."""
    found = failures.substitute(variable)
    return found[1] if found else f"export {variable}=DIR  # one to write to and load code from; none was found"


def by(key: Callable[[str], object], found: Iterable[Place]) -> Iterator[list[Place]]:
    """These places, those together for whose directories ``key`` is the same. What cannot be asked is left out."""
    groups: dict[object, list[Place]] = {}
    for place in found:
        with suppress(OSError):
            groups.setdefault(key(nearest(place.path)), []).append(place)
    yield from groups.values()
