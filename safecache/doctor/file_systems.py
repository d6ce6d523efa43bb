"""Checks of the directories' file systems: what kind each is, such as memory, and how it behaves when tried out."""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping

from safecache import loads
from safecache.doctor import directories, finding
from safecache.doctor.directories import Place
from safecache.doctor.finding import Finding
from safecache.files import folders, mounts
from safecache.files.mounts import Mount
from safecache.settings import config
from safecache.settings.units import write_size

__all__ = ["check_behaviour", "check_file_systems", "check_local_level"]

_MEMORY = ("tmpfs", "ramfs")
# NFS options (nfs(5)) with which a lock is granted on this host, whatever another one holds.
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=all", "local_lock=flock"})


def check_file_systems(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each mount of one of the directories, and others about its options."""
    found = directories.of(environ)
    for those in directories.by(mounts.mount_of, found):
        mount = mounts.mount_of(directories.nearest(those[0].path))
        if mount is not None:
            yield _of_mount(mount, those)
            yield from _of_options(mount, those)


def _of_mount(mount: Mount, those: list[Place]) -> Finding:
    where = f"{_named(those)} on {mount}{_room(mount.point)}"
    cache = next((place for place in those if place.is_cache), None)
    if mount.file_system in _MEMORY:
        evidence = f"{where}: that is memory. It counts against a container's limit, and is empty after a restart."
        return finding.info(
            "in-memory", evidence, f"{loads.set_line(those[0].variable)}  # on a disk, if it is to be kept"
        )
    if mounts.is_over_a_network(directories.nearest(those[0].path)):
        remedy = (
            "export SAFECACHE_TIERS=DIR,cache  # DIR on a disk of this node"
            if cache and not config.current().local
            else ""
        )
        evidence = f"{where}: over a network. Each hit asks the server, and locks may be for one host alone."
        return finding.info("network-file-system", evidence, remedy)
    if mount.file_system == "overlay":
        evidence = f"{where}: in a container's own layer, unless it is a volume. It is gone with the container."
        return finding.info("container-layer", evidence, f"{loads.set_line(those[0].variable)}  # on a volume")
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
        remedy = f"export SAFECACHE_TIERS={shlex.quote(layers)} {caches[0].variable}=DIR  # where DIR can be written"
        yield finding.warning("read-only-file-system", evidence, remedy)


def check_local_level(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a local level that saves nothing."""
    local = config.current().local
    if local is None:
        return
    place = directories.nearest(local)
    if mounts.is_over_a_network(place):
        evidence = f"The local level {local} lies on {mounts.mount_of(place)}, which is not a disk of this node."
        yield finding.warning(
            "local-level-is-remote", evidence, "export SAFECACHE_TIERS=DIR,cache  # DIR on a disk of this node"
        )
    shared = directories.nearest(directories.caches(environ)[0].path)
    if os.stat(place).st_dev == os.stat(shared).st_dev:
        evidence = f"The local level {local} lies on the same file system as {shared}: all is kept twice there."
        yield finding.warning("local-level-gains-nothing", evidence, "Leave it out of SAFECACHE_TIERS.")


_PREFIX = ".safecache-probe-"
# Seconds between the clocks of a file server and this host. Files used within an hour count as in use.
_MOST_SKEW = 300.0
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def check_behaviour(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about what does not work, tried out on each file system of one of the directories."""
    for those in directories.by(lambda path: os.stat(path).st_dev, directories.of(environ)):
        for place in those:
            directory = directories.nearest(place.path)
            if os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
                yield from _tried(place, directory)
                break


def _tried(place: Place, directory: str) -> Iterator[Finding]:
    where = f"{directory}, where {place.noun} is to be," if directory != place.path else str(place)
    try:
        with folders.scratch(directory, _PREFIX) as probe:
            found = [each for step in _STEPS for each in step(probe.path, where, place.variable)]
    except OSError as error:
        yield finding.info("not-probed", f"{where} could not be tried out: {error.strerror}.")
        return
    mount = mounts.mount_of(directory)
    yield from found or [finding.ok("behaviour", f"Renames, locks and syncs work on {mount or directory}.")]


def _write(probe: str, where: str, variable: str) -> Iterator[Finding]:
    descriptor = os.open(os.path.join(probe, "synced"), _CREATE, 0o600)
    try:
        os.write(descriptor, bytes(4096))
        os.fsync(descriptor)
        skew = os.fstat(descriptor).st_mtime - time.time()
    except OSError as error:
        evidence = f"On {where} a file cannot be written and synced: {error.strerror}."
        yield finding.error("no-sync", evidence, f"{loads.set_line(variable)}  # on another file system")
        return
    finally:
        os.close(descriptor)
    if abs(skew) > _MOST_SKEW:
        evidence = f"The clock of {where} is {skew:+.0f} s off this machine's: what is in use can be taken for old."
        yield finding.warning("clock-skew", evidence, "timedatectl set-ntp true  # on both")


def _rename(probe: str, where: str, variable: str) -> Iterator[Finding]:
    old, new = os.path.join(probe, "old"), os.path.join(probe, "new")
    for path, content in ((old, "old"), (new, "new")):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    try:
        os.rename(new, old)
        with open(old, encoding="utf-8") as file:
            wrong = None if file.read() == "new" else "the file that was there is still there"
    except OSError as error:
        wrong = error.strerror
    if wrong is not None:
        evidence = f"On {where} a file cannot be renamed over another: {wrong}. So nothing can be published."
        yield finding.error("no-rename", evidence, f"{loads.set_line(variable)}  # on another file system")


def _lock(probe: str, where: str, variable: str) -> Iterator[Finding]:
    path = os.path.join(probe, "lock")
    first, second = os.open(path, _CREATE, 0o600), os.open(path, _CREATE, 0o600)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        wrong: str | None = "it is granted to two at once"
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wrong = None
    except OSError as error:
        wrong = error.strerror
    finally:
        os.close(first)
        os.close(second)
    if wrong is not None:
        evidence = f"On {where} a lock cannot be relied on: {wrong}. Processes then build the same kernels at once."
        yield finding.warning("no-locks", evidence, f"{loads.set_line(variable)}  # on another file system")


def _link(probe: str, where: str, _: str) -> Iterator[Finding]:
    path = os.path.join(probe, "name")
    with open(path, "wb"):
        pass
    try:
        os.link(path, os.path.join(probe, "other"))
    except OSError as error:
        evidence = f"On {where} there are no hard links ({error.strerror}): locks do for them."
        yield finding.info("no-hard-links", evidence)


_STEPS: tuple[Callable[[str, str, str], Iterator[Finding]], ...] = (_write, _rename, _lock, _link)
