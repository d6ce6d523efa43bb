"""Two levels of a cache: one on this node, which torch uses, in front of a slow shared one.

The first is named before ``cache`` in SAFECACHE_TIERS.

The shared tier is the nearest tier below the local one and, unlike the layers, is written too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from safecache.fs import ownership
from safecache.places import layout
from safecache.reporting import waits
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.tiers import directory_faults

__all__ = [
    "Level",
    "begin",
    "find",
    "find_counterpart",
    "find_node_cache",
    "find_objection",
    "find_place",
    "find_shared",
    "find_shared_cache",
    "is_left_alone",
    "is_local",
    "is_place",
    "is_shared",
    "leave_alone",
    "list_caches",
    "register_level",
]

_LONGEST_NAME = 80
_DIGITS = 16
# Seconds for which a shared tier is not read, or not written, after a failure.
_PATIENCE = 60.0


class Level(NamedTuple):
    """A local tier on this node: its directory ``place``, and the ``shared`` cache behind it."""

    place: str
    shared: str

    def find_counterpart(self, path: str) -> str:
        """Return the path in the shared tier that corresponds to ``path`` in the local tier."""
        return self.shared + path[len(self.place) :]


class _State:
    def __init__(self) -> None:
        self.levels: dict[str, Level] = {}


_state: Part[_State] = Part(_State, inherit)


def find_place(shared: str) -> str | None:
    """Return the local tier's directory for the cache ``shared``; None if none is wanted, or for a local tier."""
    local = config.current().local
    if local is None or is_local(shared):
        return None
    return os.path.join(local, _name_folder(), _name_place(shared))


def _name_folder() -> str:
    return f"safecache-local-{os.geteuid()}"


def _name_place(shared: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", shared).strip("-")[-_LONGEST_NAME:]
    return f"{readable}-{hashlib.sha256(os.fsencode(shared)).hexdigest()[:_DIGITS]}"


def is_local(directory: str) -> bool:
    """Tell whether ``directory`` has the name of a local tier."""
    return os.path.basename(os.path.dirname(directory)) == _name_folder()


def find_shared(directory: str) -> str:
    """Return the cache whose local tier is ``directory``, for this process or its parent; else ``directory``."""
    found = config.get_redirection()
    levels = _state.now.levels
    if directory in levels:
        return levels[directory].shared
    return found[1] if found is not None and found[0] == directory and is_place(*found) else directory


def is_place(directory: str, shared: str) -> bool:
    """Tell whether ``directory`` has the name of a local tier of ``shared``, under these settings or others."""
    return directory.endswith(os.path.join(os.sep, _name_folder(), _name_place(shared)))


def find_objection(place: str) -> str | None:
    """Return why this process cannot keep a local tier at ``place``; None if it can. Creates it for this user alone."""
    against = directory_faults.find_objection(place, _make_place)
    return ownership.find_exposure(place) if against is None else against


def _make_place(place: str) -> None:
    own = os.path.dirname(place)
    # Other users may have their local tiers beside ours.
    for directory, mode in ((os.path.dirname(own), 0o755), (own, 0o700), (place, 0o700)):
        os.makedirs(directory, mode, exist_ok=True)


def register_level(place: str, shared: str) -> None:
    """Register ``place`` as the local tier of ``shared`` without redirecting torch, which is all a command needs."""
    _state.now.levels[place] = Level(place, shared)


def begin(place: str, shared: str) -> None:
    """Have torch use ``place`` as the local tier of ``shared``."""
    register_level(place, shared)
    if config.cache_directory() != place:
        config.redirect_cache(place, shared)


def find(path: str) -> Level | None:
    """Return the local tier that ``path`` is, or is in; None if there is none."""
    inherited, levels = config.get_redirection(), _state.now.levels
    if inherited is not None and inherited[0] not in levels and find_place(inherited[1]) == inherited[0]:
        levels[inherited[0]] = Level(*inherited)  # a compile worker may only use Triton's part of it
    return next((level for level in list(levels.values()) if f"{path}/".startswith(f"{level.place}/")), None)


def find_counterpart(path: str) -> str | None:
    """Return the path in the shared tier for ``path`` in a local one; None if ``path`` is in no local tier."""
    level = find(path)
    return None if level is None else level.find_counterpart(path)


def is_shared(directory: str) -> bool:
    """Tell whether ``directory`` is, or is in, a cache that has, or was meant to have, a local tier."""
    used = config.cache_directory()
    caches = [level.shared for level in list(_state.now.levels.values())]
    if used is not None and find_place(used) is not None:
        caches.append(used)
    return any(f"{directory}/".startswith(f"{cache}/") for cache in caches)


def leave_alone(shared: str, *, reading: bool) -> None:
    """Suspend a failed cache, such as a shared tier, for 60 s: no writes and, if ``reading``, no reads."""
    waits.breaker.now.leave_alone((shared, False), _PATIENCE)
    if reading:
        waits.breaker.now.leave_alone((shared, True), _PATIENCE)


def is_left_alone(shared: str, *, reading: bool) -> bool:
    """Tell whether leave_alone() has suspended reads of a cache, or unless ``reading`` writes to it."""
    return waits.breaker.now.get_seconds_left((shared, reading)) > 0


def list_caches(environ: Mapping[str, str]) -> list[str]:
    """Return the existing cache directories of Inductor, its precompiled headers and Triton; none inside another.

    For Inductor it is the local tier, if one is wanted, since the shared one is not this node's alone.
    """
    candidates = []
    for find in (find_node_cache, layout.precompiled_header_dir, layout.triton_cache_dir):
        with suppress(FileNotFoundError):
            candidates.append(find(environ))
    found: list[str] = []
    for path in (os.path.realpath(candidate) for candidate in candidates):
        inside = any(f"{path}/".startswith(f"{other}/") for other in found)
        if os.path.isdir(path) and not inside:
            found = [other for other in found if not other.startswith(f"{path}/")] + [path]
    return found


def find_node_cache(environ: Mapping[str, str]) -> str:
    """Return Inductor's cache, or its local tier if one is wanted. Raises as layout.inductor_cache_dir() does."""
    inductors = layout.inductor_cache_dir(environ)
    return find_place(inductors) or inductors


def find_shared_cache(environ: Mapping[str, str]) -> str | None:
    """Return the cache behind this node's local tier, and register that by know(); None if none is wanted."""
    inductors = find_shared(layout.inductor_cache_dir(environ))
    place = find_place(inductors)
    if place is None:
        return None
    register_level(place, inductors)
    return inductors
