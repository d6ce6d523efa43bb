"""The directories: who may use them, what room is in them, whether code can be loaded from there; the user's name."""

from __future__ import annotations

import os
import pwd
import resource
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress

from safecache.code import exec_directory
from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.doctor.places import Place
from safecache.files import mounts, ownership
from safecache.patching import targets
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.signing import provenance

__all__ = ["check_access", "check_execution", "check_space", "check_user"]

_NAMED_BY = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as getpass.getuser() asks


def check_user(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A uid without a passwd entry, as OpenShift and ``docker --user`` give."""
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
_ON_PURPOSE = "  # or, if it is shared on purpose: export SAFECACHE_SHARED=1"


def check_access(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What this user cannot use, and what others could change."""
    yield from _temporary(environ)
    for place in places.of(environ):
        if place.variable != "XDG_CONFIG_HOME":  # of the keys the check of keys tells
            yield from _unusable(place)
        if place.is_cache and os.path.isdir(place.path):
            yield from _exposed(place)
            yield from _linked(place)
    for layer in config.current().lower:
        if not os.path.isdir(layer) or not os.access(layer, os.R_OK | os.X_OK, effective_ids=True):
            evidence = f"SAFECACHE_LOWER names {layer}, which {_state(layer)}: nothing is found there."
            yield finding.warning("layer-missing", evidence, "Mount it, or leave it out of SAFECACHE_LOWER.")
    if config.current().shared:
        yield from _shared(environ)


def _temporary(environ: Mapping[str, str]) -> Iterator[Finding]:
    remedy = places.elsewhere("TMPDIR")
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
    above = places.nearest(place.path)
    if not os.path.isdir(above) or (above != place.path and os.path.lexists(place.path)):
        evidence = f"{place}: {above if os.path.exists(above) else place.path} is not a directory."
        yield finding.error("not-a-directory", evidence, places.elsewhere(place.variable))
    elif not os.access(above, _USE, effective_ids=True):
        doing = "cannot be used" if above == place.path else "cannot be made"
        evidence = f"{place} {doing}: {above} {_state(above)}. Each process compiles anew, in a directory of its own."
        yield finding.error("not-writable", evidence, places.elsewhere(place.variable))


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
        remedy = f"{places.elsewhere(place.variable)}{_ON_PURPOSE}"
    evidence = f"Others can write to {place}, or replace it: {objection}. What is not sealed is not used there."
    yield finding.warning("exposed-directory", evidence, remedy)


def _linked(place: Place) -> Iterator[Finding]:
    real = os.path.realpath(place.path)
    if real != place.path:
        yield finding.info("symbolic-link", f"{place} leads to {real} by a symbolic link.")


def _shared(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Of a cache that several users share on purpose."""
    for place in places.caches(environ):
        if not os.path.isdir(place.path) or place.variable == "SAFECACHE_LOCAL":
            continue
        mode = os.stat(place.path).st_mode
        quoted = shlex.quote(place.path)
        if mode & stat.S_ISVTX:
            evidence = f"{place} is shared, and sticky: nobody can replace a damaged file of another user."
            yield finding.warning("sticky-shared-directory", evidence, f"chmod -R -t {quoted}")
        if mode & stat.S_IWGRP and not mode & stat.S_ISGID:
            evidence = f"{place} is shared by a group, and not setgid: what users make there is not that group's."
            yield finding.warning("no-setgid", evidence, f"chmod -R g+s {quoted}")
    umask = _umask()
    if umask & 0o020:
        evidence = f"The cache is shared, and with umask {umask:03o} other users cannot write to what this one makes."
        yield finding.warning("umask-of-one", evidence, "umask 002")


def _umask() -> int:
    # Not os.umask(), which sets it for all threads.
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


# A cold compile of a large model takes hundreds of MB and thousands of files; precompiled headers alone 300 MB.
_LEAST_BYTES = 1 << 30
_LEAST_INODES = 10_000


def check_space(environ: Mapping[str, str]) -> Iterator[Finding]:
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


def check_execution(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Directories on a noexec mount, and an approved one that is not used."""
    chosen = config.current().exec_dir
    if chosen is not None:
        against = exec_directory.objection(chosen)
        if against is not None:
            remedy = f"install -d -m 0755 {shlex.quote(chosen)}  # by you or root, on a file system that is not noexec"
            yield finding.error("exec-dir-unusable", f"SAFECACHE_EXEC_DIR={chosen} is not used: {against}.", remedy)
    else:
        for place in places.caches(environ):
            if mounts.forbids_execution(place.path):
                evidence = f"{place} lies on {mounts.mount_of(place.path)}: no code can be loaded from there."
                yield finding.error("noexec", evidence, places.elsewhere(place.variable))
    yield from _packages()


def _packages() -> Iterator[Finding]:
    """AOTInductor's are unpacked to the temporary directory, and loaded from there."""
    with suppress(FileNotFoundError):
        moves = provenance.torch_release() >= targets.PACKAGES_OBEY_TMPDIR_FROM
        directory = tempfile.gettempdir() if moves else "/tmp"
        if mounts.forbids_execution(directory):
            mount = mounts.mount_of(directory)
            evidence = f"AOTInductor packages are unpacked to {directory}, on {mount}, and cannot be loaded from there."
            point = mount.point if mount else directory
            remedy = places.elsewhere("TMPDIR") if moves else f"mount -o remount,exec {shlex.quote(point)}"
            yield finding.warning("noexec-packages", evidence, remedy)
