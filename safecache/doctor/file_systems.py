"""What the directories lie on: what is lost with a container, what is memory, and what goes over a network."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping

from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.doctor.places import Place
from safecache.files import mounts
from safecache.files.mounts import Mount
from safecache.settings import config
from safecache.settings.units import write_size

__all__ = ["check"]

_MEMORY = ("tmpfs", "ramfs")
# Of NFS (nfs(5)): a lock is then granted on this host, whatever another one holds.
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=all", "local_lock=flock"})


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each mount that one of the directories lies on."""
    found = places.of(environ)
    for those in places.by(mounts.mount_of, found):
        mount = mounts.mount_of(places.nearest(those[0].path))
        if mount is not None:
            yield _of_mount(mount, those)
            yield from _of_options(mount, those)
    yield from _of_local_level(environ)


def _of_mount(mount: Mount, those: list[Place]) -> Finding:
    where = f"{_named(those)} on {mount}{_room(mount.point)}"
    cache = next((place for place in those if place.is_cache), None)
    if mount.file_system in _MEMORY:
        evidence = f"{where}: that is memory. It counts against a container's limit, and is empty after a restart."
        return finding.info("in-memory", evidence, f"export {those[0].variable}=DIR  # on a disk, if it is to be kept")
    if mounts.is_over_a_network(places.nearest(those[0].path)):
        remedy = "export SAFECACHE_LOCAL=DIR  # on a disk of this node" if cache and not config.current().local else ""
        evidence = f"{where}: over a network. Each hit asks the server, and locks may be for one host alone."
        return finding.info("network-file-system", evidence, remedy)
    if mount.file_system == "overlay":
        evidence = f"{where}: in a container's own layer, unless it is a volume. It is gone with the container."
        return finding.info("container-layer", evidence, f"export {those[0].variable}=DIR  # on a volume")
    return finding.ok("file-system", f"{where}.")


def _named(those: list[Place]) -> str:
    return f"{', '.join(map(str, those))} {'lie' if len(those) > 1 else 'lies'}"


def _room(point: str) -> str:
    try:
        room = os.statvfs(point)
    except OSError:
        return ""
    inodes = f" and {room.f_favail} inodes" if room.f_files else ""
    return f", {write_size(room.f_bavail * room.f_frsize)} of {write_size(room.f_blocks * room.f_frsize)}{inodes} free"


def _of_options(mount: Mount, those: list[Place]) -> Iterator[Finding]:
    local = sorted(_LOCAL_LOCKS.intersection(mount.options))
    if local:
        evidence = f"{_named(those)} on {mount}: with {', '.join(local)}, locks are for one host alone."
        yield finding.warning("locks-of-one-host", evidence, "Mount it with lock and local_lock=none.")
    caches = [place for place in those if place.is_cache and os.path.isdir(place.path)]
    if "ro" in mount.options and caches:
        evidence = f"{_named(caches)} on {mount}: read-only. What is there is used, and nothing is added."
        layers = ":".join(place.path for place in caches)
        remedy = f"export SAFECACHE_LOWER={shlex.quote(layers)} {caches[0].variable}=DIR  # where DIR can be written"
        yield finding.warning("read-only-file-system", evidence, remedy)


def _of_local_level(environ: Mapping[str, str]) -> Iterator[Finding]:
    local = config.current().local
    if local is None:
        return
    place = places.nearest(local)
    if mounts.is_over_a_network(place):
        evidence = f"SAFECACHE_LOCAL={local} lies on {mounts.mount_of(place)}, which is not a disk of this node."
        yield finding.warning("local-level-is-remote", evidence, "export SAFECACHE_LOCAL=DIR  # on a disk of this node")
    shared = places.nearest(places.caches(environ)[0].path)
    if os.stat(place).st_dev == os.stat(shared).st_dev:
        evidence = f"SAFECACHE_LOCAL={local} lies on the same file system as {shared}: all is kept twice there."
        yield finding.warning("local-level-gains-nothing", evidence, "unset SAFECACHE_LOCAL")
