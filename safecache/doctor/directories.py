"""Checks of the directories that a compile uses and of their file systems: access, space, and if code may be loaded."""

from __future__ import annotations

import fcntl
import os
import pwd
import resource
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from safecache import loads
from safecache.code import exec_directory, packages
from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.errors import PackRefusedError
from safecache.files import folders, mounts, ownership
from safecache.files.mounts import Mount
from safecache.packs import archive
from safecache.places import layout
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.signing import provenance
from safecache.tiers import levels

__all__ = [
    "Place",
    "by",
    "caches",
    "check_access",
    "check_behaviour",
    "check_execution",
    "check_file_systems",
    "check_local_level",
    "check_packages",
    "check_sharing",
    "check_space",
    "check_temporary_directory",
    "check_user",
    "elsewhere",
    "nearest",
    "of",
]


_MEMORY = ("tmpfs", "ramfs")
# NFS options (nfs(5)) with which a lock is granted on this host, whatever another one holds.
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=all", "local_lock=flock"})


class Place(NamedTuple):
    """``noun``: its name for a person; ``variable``: the one that moves it elsewhere."""

    noun: str
    path: str
    variable: str
    is_cache: bool = True

    def __str__(self) -> str:
        return f"{self.noun} {self.path}"


def of(environ: Mapping[str, str]) -> list[Place]:
    """The caches, the directory of keys and the temporary directory, as far as they are known."""
    found = caches(environ)
    settings = config.current()
    if settings.key_file is None and settings.config_home is not None:
        keys = os.path.join(settings.config_home, "safecache")
        found.append(Place("the directory of keys", keys, "XDG_CONFIG_HOME", is_cache=False))
    with suppress(FileNotFoundError):  # none can be written: that is a finding of its own
        found.append(Place("the temporary directory", tempfile.gettempdir(), "TMPDIR", is_cache=False))
    return found


def caches(environ: Mapping[str, str]) -> list[Place]:
    """The caches of Inductor and of Triton, and the local tier of this node in front of the first."""
    found = []
    with suppress(FileNotFoundError):
        inductors = layout.inductor_cache_dir(environ)
        found.append(Place("Inductor's cache", inductors, "TORCHINDUCTOR_CACHE_DIR"))
        local = levels.place_of(inductors)
        if local is not None:
            found.append(Place("the local tier", local, "SAFECACHE_TIERS"))
    found.append(Place("Triton's cache", os.path.abspath(layout.triton_cache_dir(environ)), "TRITON_CACHE_DIR"))
    return found


def nearest(path: str) -> str:
    """``path``, or else its nearest existing parent, which decides whether it can be created."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def elsewhere(variable: str) -> str:
    """A shell line that sets ``variable`` to a directory that can be written and that code can be loaded from."""
    found = loads.substitute(variable)
    return found[1] if found else f"{loads.set_line(variable)}  # one to write to and load code from; none was found"


def by(key: Callable[[str], object], found: Iterable[Place]) -> Iterator[list[Place]]:
    """The places, grouped by ``key`` of their nearest directory; those for which it raises OSError are left out."""
    groups: dict[object, list[Place]] = {}
    for place in found:
        with suppress(OSError):
            groups.setdefault(key(nearest(place.path)), []).append(place)
    yield from groups.values()


_NAMED_BY = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as getpass.getuser() asks


def check_user(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding about a uid without a passwd entry, as with OpenShift and ``docker --user``."""
    user = os.getuid()
    try:
        yield finding.ok("user", f"uid {user} is {pwd.getpwuid(user).pw_name}.")
        return
    except KeyError:
        missing = f"uid {user} has no passwd entry"
    named = next((name for name in _NAMED_BY if environ.get(name)), None)
    if named is not None:
        yield finding.info("no-passwd-entry", f"{missing}; {named}={environ[named]} names it instead.")
        return
    evidence = (
        f"{missing}, and no variable names it: getpass.getuser() fails. torch 2.11 and 2.12 then fail to import, "
        f"unless safecache is active; later ones call their default cache directory torchinductor_uid_{user}."
    )
    yield finding.warning("no-passwd-entry", evidence, f"export LOGNAME=uid_{user}")


_USE = os.R_OK | os.W_OK | os.X_OK
_ON_PURPOSE = "  # or, if it is shared on purpose: export SAFECACHE_TRUST=shared"


def check_access(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about directories that this user cannot use, or whose permissions let others change them."""
    for place in of(environ):
        if place.variable != "XDG_CONFIG_HOME":  # check_keys() reports on that
            yield from _unusable(place)
        if place.is_cache and os.path.isdir(place.path):
            yield from _exposed(place)
            real = os.path.realpath(place.path)
            if real != place.path:
                yield finding.info("symbolic-link", f"{place} leads to {real} by a symbolic link.")
    for layer in config.current().layers:
        if not os.path.isdir(layer) or not os.access(layer, os.R_OK | os.X_OK, effective_ids=True):
            evidence = f"SAFECACHE_TIERS names {layer}, which {_state(layer)}: nothing is found there."
            yield finding.warning("layer-missing", evidence, "Mount it, or leave it out of SAFECACHE_TIERS.")
    for why in filter(None, map(_refused, config.current().packs)):
        evidence = f"SAFECACHE_TIERS names a pack of which nothing is used: {why}"
        yield finding.warning("pack-unusable", evidence, "Make it again with safecache copy, or leave it out.")


def _refused(path: str) -> str:
    """Why nothing is taken from this pack; "" if it is used."""
    if not config.is_installed("zstandard"):
        return f"{path} cannot be read: zstandard is not installed ({config.install_line('pack')})."
    try:
        archive.opened(path)
    except PackRefusedError as error:
        return str(error)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    return ""


def check_temporary_directory(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a temporary directory that is missing, ignored or open to others."""
    remedy = elsewhere("TMPDIR")
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        evidence = f"There is no temporary directory that can be written: {error.strerror}."
        yield finding.error("no-temporary-directory", evidence, remedy)
        return
    named = environ.get("TMPDIR")
    if named and os.path.abspath(named) != used:
        evidence = f"TMPDIR={named} {_state(named)}: Python uses {used} instead, and compilers need not."
        yield finding.warning("temporary-directory-ignored", evidence, remedy)
    mode = os.stat(used).st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        evidence = f"The temporary directory {used} has mode {stat.S_IMODE(mode):04o}: others can exchange files in it."
        yield finding.warning("exposed-temporary-directory", evidence, f"chmod +t {shlex.quote(used)}")


def _unusable(place: Place) -> Iterator[Finding]:
    above = nearest(place.path)
    if not os.path.isdir(above) or (above != place.path and os.path.lexists(place.path)):
        evidence = f"{place}: {above if os.path.exists(above) else place.path} is not a directory."
        yield finding.error("not-a-directory", evidence, elsewhere(place.variable))
    elif not os.access(above, _USE, effective_ids=True):
        doing = "is not writable" if above == place.path else "cannot be made"
        evidence = f"{place} {doing}: {above} {_state(above)}. Nothing new is cached; every process recompiles."
        yield finding.error("not-writable", evidence, elsewhere(place.variable))


def _state(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    mode = "on a read-only file system, " if read_only else ""
    mode += stat.filemode(status.st_mode)
    return f"is {mode}, of uid {status.st_uid} and gid {status.st_gid}, and this is uid {os.geteuid()}"


def _exposed(place: Place) -> Iterator[Finding]:
    if config.current().shared:
        return
    objection = ownership.why_not_private(place.path, group=ownership.own_group())
    if objection is None:
        return
    remedy = f"chmod -R go-w {shlex.quote(place.path)}{_ON_PURPOSE}"
    if "belongs to" in objection:
        remedy = f"{elsewhere(place.variable)}{_ON_PURPOSE}"
    evidence = f"Others can write to {place}, or replace it: {objection}. What is not sealed is not used there."
    yield finding.warning("exposed-directory", evidence, remedy)


def check_sharing(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about caches that several users share on purpose."""
    if not config.current().shared:
        return
    for place in caches(environ):
        if not os.path.isdir(place.path) or place.variable == "SAFECACHE_TIERS":
            continue
        mode = os.stat(place.path).st_mode
        quoted = shlex.quote(place.path)
        if mode & stat.S_ISVTX:
            evidence = f"{place} is shared, and sticky: nobody can replace a damaged file of another user."
            yield finding.warning("sticky-shared-directory", evidence, f"chmod -R -t {quoted}")
        if mode & stat.S_IWGRP and not mode & stat.S_ISGID:
            evidence = f"{place} is shared by a group, and not setgid: what users make there is not that group's."
            yield finding.warning("no-setgid", evidence, f"chmod -R g+s {quoted}")
    # Not os.umask(), which sets it for all threads.
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        umask = next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
    if umask & 0o020:
        evidence = f"The cache is shared, and with umask {umask:03o} other users cannot write to what this one makes."
        yield finding.warning("umask-of-one", evidence, "umask 002")


# A cold compile of a large model takes hundreds of MB and thousands of files; precompiled headers alone 300 MB.
_LEAST_BYTES = 1 << 30
_LEAST_INODES = 10_000


def check_space(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about too little space, or too few inodes, on each file system of one of the directories."""
    for those in by(lambda path: os.stat(path).st_dev, of(environ)):
        room = os.statvfs(nearest(those[0].path))
        yield from _short(those, room)
        limit = config.current().max_bytes
        size = room.f_blocks * room.f_frsize
        if limit is not None and any(place.is_cache for place in those) and limit > size:
            evidence = f"SAFECACHE_LIMITS allows {write_size(limit)}, and {those[0]} is on a file system of "
            remedy = f"export SAFECACHE_LIMITS=bytes={size // 2}"
            yield finding.warning("limit-beyond-disk", f"{evidence}{write_size(size)}.", remedy)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < _LEAST_BYTES:
        evidence = f"This process may write files of {write_size(most)} at most: a larger one ends it by SIGXFSZ."
        yield finding.warning("file-size-limit", evidence, "ulimit -f unlimited")


def _short(those: list[Place], room: os.statvfs_result) -> Iterator[Finding]:
    names = ", ".join(map(str, those))
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_BYTES:
        # Reserved for root, or beyond a quota, if the file system takes that into account.
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
    return f"{loads.set_line(those[0].variable)}  # on another file system, or make room there"


def check_execution(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about directories on a noexec mount, and about a SAFECACHE_EXEC_DIR that is not used."""
    chosen = config.current().exec_dir
    if chosen is not None:
        against = exec_directory.objection(chosen)
        if against is not None:
            remedy = f"install -d -m 0755 {shlex.quote(chosen)}  # by you or root, on a file system that is not noexec"
            yield finding.error("exec-dir-unusable", f"SAFECACHE_EXEC_DIR={chosen} is not used: {against}.", remedy)
    else:
        for place in caches(environ):
            if mounts.forbids_execution(place.path):
                evidence = f"{place} is on {mounts.mount_of(place.path)}, from which no code can be loaded."
                yield finding.error("noexec", evidence, elsewhere(place.variable))


def check_packages(_: Mapping[str, str]) -> Iterator[Finding]:
    """AOTInductor's packages are unpacked to the temporary directory, and loaded from there."""
    with suppress(FileNotFoundError):
        moves = provenance.torch_release() >= packages.PACKAGES_OBEY_TMPDIR_FROM
        directory = tempfile.gettempdir() if moves else "/tmp"
        if mounts.forbids_execution(directory):
            mount = mounts.mount_of(directory)
            evidence = f"AOTInductor packages are unpacked to {directory}, on {mount}, and cannot be loaded from there."
            point = mount.point if mount else directory
            remedy = elsewhere("TMPDIR") if moves else f"mount -o remount,exec {shlex.quote(point)}"
            yield finding.warning("noexec-packages", evidence, remedy)


def check_file_systems(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each mount of one of the directories, and others about its options."""
    found = of(environ)
    for those in by(mounts.mount_of, found):
        mount = mounts.mount_of(nearest(those[0].path))
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
    if mounts.is_over_a_network(nearest(those[0].path)):
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
    """Findings about a local tier that saves nothing."""
    local = config.current().local
    if local is None:
        return
    place = nearest(local)
    if mounts.is_over_a_network(place):
        evidence = f"The local tier {local} is on {mounts.mount_of(place)}, which is not a disk of this node."
        yield finding.warning(
            "local-level-is-remote", evidence, "export SAFECACHE_TIERS=DIR,cache  # DIR on a disk of this node"
        )
    shared = nearest(caches(environ)[0].path)
    if os.stat(place).st_dev == os.stat(shared).st_dev:
        evidence = f"The local tier {local} and {shared} are on one file system, which keeps everything twice."
        yield finding.warning("local-level-gains-nothing", evidence, "Leave it out of SAFECACHE_TIERS.")


_PREFIX = ".safecache-probe-"
# Seconds between the clocks of a file server and this host. Files used within an hour count as in use.
_MOST_SKEW = 300.0
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def check_behaviour(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about what does not work, tried out on each file system of one of the directories."""
    for those in by(lambda path: os.stat(path).st_dev, of(environ)):
        for place in those:
            directory = nearest(place.path)
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
