"""Room in the directories: bytes, inodes, quotas, and the limits of this process and of the caches."""

from __future__ import annotations

import os
import resource
import shlex
from collections.abc import Iterator, Mapping

from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.doctor.places import Place
from safecache.settings import config
from safecache.settings.units import write_size

__all__ = ["check"]

# A cold compile of a large model takes hundreds of MB and thousands of files; precompiled headers alone 300 MB.
_LEAST_BYTES = 1 << 30
_LEAST_INODES = 10_000


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What is short on each file system that one of the directories lies on."""
    for those in places.by(lambda path: os.stat(path).st_dev, places.of(environ)):
        room = os.statvfs(places.nearest(those[0].path))
        yield from _short(those, room)
        limit = config.current().max_bytes
        size = room.f_blocks * room.f_frsize
        if limit is not None and any(place.is_cache for place in those) and limit > size:
            evidence = f"SAFECACHE_MAX_BYTES allows {write_size(limit)}, and {those[0]} is on a file system of "
            remedy = f"export SAFECACHE_MAX_BYTES={size // 2}"
            yield finding.warning("limit-beyond-disk", f"{evidence}{write_size(size)}.", remedy)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < _LEAST_BYTES:
        evidence = f"This process may write files of {write_size(most)} at most: a larger one ends it by SIGXFSZ."
        yield finding.warning("file-size-limit", evidence, "ulimit -f unlimited")


def _short(those: list[Place], room: os.statvfs_result) -> Iterator[Finding]:
    names = ", ".join(map(str, those))
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_BYTES:
        # To others than root, or to those below their quota, where the file system takes that into account.
        withheld = (room.f_bfree - room.f_bavail) * room.f_frsize
        rest = f"; {write_size(withheld)} more are reserved, or beyond a quota" if withheld > 0 else ""
        total = write_size(room.f_blocks * room.f_frsize)
        evidence = f"{write_size(free)} of {total} are free for {names}{rest}."
        yield finding.warning("low-space", evidence, _remedy(those))
    if room.f_files and room.f_favail < _LEAST_INODES:
        evidence = f"{room.f_favail} of {room.f_files} inodes are free for {names}: each file takes one."
        yield finding.warning("low-inodes", evidence, _remedy(those))


def _remedy(those: list[Place]) -> str:
    caches = [place.path for place in those if place.is_cache and os.path.isdir(place.path)]
    if caches:
        return f"safecache gc --max-age 7d {shlex.join(caches)}"
    return f"export {those[0].variable}=DIR  # on another file system, or make room there"
