"""Two levels of a cache: one on this node, which torch uses, in front of a slow shared one.

The first is named before ``cache`` in SAFECACHE_TIERS.

The shared level is the nearest tier below the local one and, unlike the layers, is written too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from safecache.files import ownership
from safecache.places import layout
from safecache.reporting import waits
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.tiers import directory_faults

__all__ = [
    "Level",
    "begin",
    "counterpart",
    "existing_caches",
    "find",
    "is_left_alone",
    "is_local",
    "is_place",
    "is_shared",
    "know",
    "leave_alone",
    "objection",
    "of_this_node",
    "place_of",
    "shared_cache",
    "shared_of",
]

_LONGEST_NAME = 80
_DIGITS = 16
# Seconds for which a shared level is not read, or not written, after a failure.
_PATIENCE = 60.0


class Level(NamedTuple):
    """A local level on this node: its directory ``place``, and the ``shared`` cache behind it."""

    place: str
    shared: str

    def counterpart(self, path: str) -> str:
        """The path in the shared level that corresponds to ``path`` in this one."""
        return self.shared + path[len(self.place) :]


class _State:
    def __init__(self) -> None:
        self.levels: dict[str, Level] = {}


_state: Part[_State] = Part(_State, inherit)


def place_of(shared: str) -> str | None:
    """The local level's directory for the cache ``shared``; None if none is wanted, or ``shared`` is one itself."""
    local = config.current().local
    if local is None or is_local(shared):
        return None
    return os.path.join(local, _folder(), _name(shared))


def _folder() -> str:
    return f"safecache-local-{os.geteuid()}"


def _name(shared: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", shared).strip("-")[-_LONGEST_NAME:]
    return f"{readable}-{hashlib.sha256(os.fsencode(shared)).hexdigest()[:_DIGITS]}"


def is_local(directory: str) -> bool:
    """Whether ``directory`` has the name of a local level."""
    return os.path.basename(os.path.dirname(directory)) == _folder()


def shared_of(directory: str) -> str:
    """The cache whose local level ``directory`` is, begun by this process or its parent; otherwise ``directory``."""
    found = config.redirected()
    levels = _state.now.levels
    if directory in levels:
        return levels[directory].shared
    return found[1] if found is not None and found[0] == directory and is_place(*found) else directory


def is_place(directory: str, shared: str) -> bool:
    """Whether ``directory`` has the name of a local level of ``shared``, under these settings or others."""
    return directory.endswith(os.path.join(os.sep, _folder(), _name(shared)))


def objection(place: str) -> str | None:
    """Why this process cannot keep a local level at ``place``, None if it can; creates it, for this user alone."""
    against = directory_faults.objection(place, _make)
    return ownership.why_not_private(place) if against is None else against


def _make(place: str) -> None:
    own = os.path.dirname(place)
    # Other users may have their local levels beside ours.
    for directory, mode in ((os.path.dirname(own), 0o755), (own, 0o700), (place, 0o700)):
        os.makedirs(directory, mode, exist_ok=True)


def know(place: str, shared: str) -> None:
    """Register ``place`` as the local level of ``shared`` without redirecting torch, which is all a command needs."""
    _state.now.levels[place] = Level(place, shared)


def begin(place: str, shared: str) -> None:
    """Have torch use ``place`` as the local level of ``shared``."""
    know(place, shared)
    if config.cache_directory() != place:
        config.redirect_cache(place, shared)


def find(path: str) -> Level | None:
    """The local level that ``path`` is or lies in; None if there is none."""
    inherited, levels = config.redirected(), _state.now.levels
    if inherited is not None and inherited[0] not in levels and place_of(inherited[1]) == inherited[0]:
        levels[inherited[0]] = Level(*inherited)  # a compile worker may only use Triton's part of it
    return next((level for level in list(levels.values()) if f"{path}/".startswith(f"{level.place}/")), None)


def counterpart(path: str) -> str | None:
    """The path in the shared level that corresponds to ``path`` in a local one; None if it is in no local level."""
    level = find(path)
    return None if level is None else level.counterpart(path)


def is_shared(directory: str) -> bool:
    """Whether ``directory`` is, or lies in, a cache that has, or was meant to have, a local level."""
    used = config.cache_directory()
    caches = [level.shared for level in list(_state.now.levels.values())]
    if used is not None and place_of(used) is not None:
        caches.append(used)
    return any(f"{directory}/".startswith(f"{cache}/") for cache in caches)


def leave_alone(shared: str, *, reading: bool) -> None:
    """For 60 s do not write to a cache that has failed, such as a shared level, nor, if ``reading``, read it."""
    waits.breaker.now.leave_alone((shared, False), _PATIENCE)
    if reading:
        waits.breaker.now.leave_alone((shared, True), _PATIENCE)


def is_left_alone(shared: str, *, reading: bool) -> bool:
    """Whether a cache is not to be read, or unless ``reading`` not to be written, for now: see leave_alone()."""
    return waits.breaker.now.seconds_left((shared, reading)) > 0


def existing_caches(environ: Mapping[str, str]) -> list[str]:
    """The existing cache directories of Inductor, of its precompiled headers, and of Triton; none inside another.

    For Inductor the local level, if one is wanted, since the shared one is not this node's alone.
    """
    candidates = []
    for find in (of_this_node, layout.precompiled_header_dir, layout.triton_cache_dir):
        with suppress(FileNotFoundError):
            candidates.append(find(environ))
    found: list[str] = []
    for path in (os.path.realpath(candidate) for candidate in candidates):
        inside = any(f"{path}/".startswith(f"{other}/") for other in found)
        if os.path.isdir(path) and not inside:
            found = [other for other in found if not other.startswith(f"{path}/")] + [path]
    return found


def of_this_node(environ: Mapping[str, str]) -> str:
    """Inductor's cache, or the local level of it that is wanted. Raises as layout.inductor_cache_dir()."""
    inductors = layout.inductor_cache_dir(environ)
    return place_of(inductors) or inductors


def shared_cache(environ: Mapping[str, str]) -> str | None:
    """The cache that this node has a local level of, which gets registered, see know(); None if it has none."""
    inductors = shared_of(layout.inductor_cache_dir(environ))
    place = place_of(inductors)
    if place is None:
        return None
    know(place, inductors)
    return inductors
