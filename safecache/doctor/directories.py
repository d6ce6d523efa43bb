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

from safecache import load_errors
from safecache.built_code import exec_directory, packages
from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.errors import PackRefusedError
from safecache.fs import folders, mounts, ownership
from safecache.fs.mounts import Mount
from safecache.packs import archive
from safecache.places import layout
from safecache.settings import config
from safecache.settings.units import write_size
from safecache.signing import provenance
from safecache.tiers import levels

__all__ = [
    "LOST",
    "Place",
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
    "find_nearest",
    "group_places",
    "list_caches",
    "list_places",
    "suggest_directory",
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


def list_places(environ: Mapping[str, str]) -> list[Place]:
    """The caches, the directory of keys and the temporary directory, as far as they are known."""
    found = list_caches(environ)
    settings = config.current()
    if settings.key_file is None and settings.config_home is not None:
        keys = os.path.join(settings.config_home, "safecache")
        found.append(Place("the directory of keys", keys, "XDG_CONFIG_HOME", is_cache=False))
    with suppress(FileNotFoundError):  # none can be written: that is a finding of its own
        found.append(Place("the temporary directory", tempfile.gettempdir(), "TMPDIR", is_cache=False))
    return found


def list_caches(environ: Mapping[str, str]) -> list[Place]:
    """The caches of Inductor and of Triton, and the local tier of this node in front of the first."""
    found = []
    with suppress(FileNotFoundError):
        inductors = layout.inductor_cache_dir(environ)
        found.append(Place("Inductor's cache", inductors, "TORCHINDUCTOR_CACHE_DIR"))
        local = levels.find_place(inductors)
        if local is not None:
            found.append(Place("the local tier", local, "SAFECACHE_TIERS"))
    found.append(Place("Triton's cache", os.path.abspath(layout.triton_cache_dir(environ)), "TRITON_CACHE_DIR"))
    return found


def find_nearest(path: str) -> str:
    """``path``, or else its nearest existing parent, which decides whether it can be created."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def suggest_directory(variable: str) -> str:
    """A shell line that sets ``variable`` to a directory that can be written and that code can be loaded from."""
    found = load_errors.find_substitute(variable)
    return (
        found[1]
        if found
        else f"{load_errors.make_export(variable)}  # one to write to and load code from; none was found"
    )


def group_places(key: Callable[[str], object], found: Iterable[Place]) -> Iterator[list[Place]]:
    """The places, grouped by ``key`` of their nearest directory; those for which it raises OSError are left out."""
    groups: dict[object, list[Place]] = {}
    for place in found:
        with suppress(OSError):
            groups.setdefault(key(find_nearest(place.path)), []).append(place)
    yield from groups.values()


_NAMED_BY = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as getpass.getuser() asks


def check_user(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding about a uid without a passwd entry, as with OpenShift and ``docker --user``."""
    user = os.getuid()
    try:
        yield finding.ok("user", f"uid {user} has a name", f"it is {pwd.getpwuid(user).pw_name}")
        return
    except KeyError:
        what = f"uid {user} has no passwd entry"
    named = next((name for name in _NAMED_BY if environ.get(name)), None)
    if named is not None:
        yield finding.info("no-passwd-entry", what, f"{named}={environ[named]} names it instead")
        return
    why = "no variable names it. The import of torch 2.11 and 2.12 needs safecache, and the default cache directory is "
    why += f"torchinductor_uid_{user}"
    yield finding.warning("no-passwd-entry", what, why, f"export LOGNAME=uid_{user}")


_USE = os.R_OK | os.W_OK | os.X_OK
_ON_PURPOSE = "  # or, if it is shared on purpose: export SAFECACHE_TRUST=shared"
LOST = "Nothing new is cached, and every process recompiles"


def check_access(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about directories that this user cannot use, or whose permissions let others change them."""
    for place in list_places(environ):
        if place.variable != "XDG_CONFIG_HOME":  # check_keys() reports on that
            yield from _check_usable(place)
        if place.is_cache and os.path.isdir(place.path):
            yield from _check_exposed(place)
            real = os.path.realpath(place.path)
            if real != place.path:
                yield finding.info("symbolic-link", f"{place} leads elsewhere", f"a symbolic link makes it {real}")
    for layer in config.current().layers:
        if not os.path.isdir(layer) or not os.access(layer, os.R_OK | os.X_OK, effective_ids=True):
            why = f"it {_format_state(layer)}. Nothing is found there, and what it would hold is recompiled"
            remedy = f"ls -ld {shlex.quote(layer)}  # mount it there, or leave it out of SAFECACHE_TIERS"
            yield finding.warning("layer-missing", f"the lower tier {layer} cannot be read", why, remedy)
    for pack, refusal in ((pack, _judge_pack(pack)) for pack in config.current().packs):
        if refusal:
            remedy = f"safecache doctor --for {shlex.quote(pack)}  # or leave it out of SAFECACHE_TIERS"
            why = f"{refusal}. What it holds is recompiled"
            yield finding.warning("pack-unusable", f"the pack {pack} is not used", why, remedy)


def _judge_pack(path: str) -> str:
    """Why nothing is taken from this pack; "" if it is used."""
    if not config.is_installed("zstandard"):
        return f"zstandard is not installed ({config.install_line('pack')})"
    try:
        archive.open_pack(path)
    except PackRefusedError as error:
        return error.why
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return ""


def check_temporary_directory(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a temporary directory that is missing, ignored or open to others."""
    remedy = suggest_directory("TMPDIR")
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError as error:
        why = f"{error.strerror}. Compilers and torch fail"
        yield finding.error("no-temporary-directory", "no temporary directory can be written", why, remedy)
        return
    named = environ.get("TMPDIR")
    if named and os.path.abspath(named) != used:
        why = f"it {_format_state(named)}. Python uses {used}, and compilers may use another or fail"
        yield finding.warning("temporary-directory-ignored", f"TMPDIR={named} is not used", why, remedy)
    mode = os.stat(used).st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        why = f"it has mode {stat.S_IMODE(mode):04o}, without the sticky bit. They can replace files of this user"
        what = f"others can write to the temporary directory {used}"
        yield finding.warning("exposed-temporary-directory", what, why, f"chmod +t {shlex.quote(used)}")


def _check_usable(place: Place) -> Iterator[Finding]:
    above = find_nearest(place.path)
    if not os.path.isdir(above) or (above != place.path and os.path.lexists(place.path)):
        why = f"{above if os.path.exists(above) else place.path} is not a directory. {LOST}"
        yield finding.error("not-a-directory", f"{place} cannot be used", why, suggest_directory(place.variable))
    elif not os.access(above, _USE, effective_ids=True):
        what = f"{place} {'is not writable' if above == place.path else 'cannot be made'}"
        yield finding.error(
            "not-writable", what, f"{above} {_format_state(above)}. {LOST}", suggest_directory(place.variable)
        )


def _format_state(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    mode = f"{'on a read-only file system, ' if read_only else ''}{stat.filemode(status.st_mode)}"
    return f"is {mode}, of uid {status.st_uid} and gid {status.st_gid}, and this is uid {os.geteuid()}"


def _check_exposed(place: Place) -> Iterator[Finding]:
    if config.current().shared:
        return
    objection = ownership.find_exposure(place.path, group=ownership.find_own_group())
    if objection is None:
        return
    remedy = f"chmod -R go-w {shlex.quote(place.path)}{_ON_PURPOSE}"
    if "belongs to" in objection:
        remedy = f"{suggest_directory(place.variable)}{_ON_PURPOSE}"
    why = f"{objection}. Only sealed files are used; others can delete them, and read what you compile"
    yield finding.warning("exposed-directory", f"others can write to {place}, or replace it", why, remedy)


def check_sharing(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about caches that several users share on purpose."""
    if not config.current().shared:
        return
    for place in list_caches(environ):
        if not os.path.isdir(place.path) or place.variable == "SAFECACHE_TIERS":
            continue
        mode = os.stat(place.path).st_mode
        quoted = shlex.quote(place.path)
        if mode & stat.S_ISVTX:
            what, why = f"{place} is shared and sticky", "it has mode +t. Only its owner can replace a damaged file"
            yield finding.warning("sticky-shared-directory", what, why, f"chmod -R -t {quoted}")
        if mode & stat.S_IWGRP and not mode & stat.S_ISGID:
            why = "new files get their writer's own group. Other users cannot read or replace them"
            remedy = f"find {quoted} -type d -exec chmod g+s {{}} +"
            yield finding.warning("no-setgid", f"{place} is shared by a group and not setgid", why, remedy)
    # Not os.umask(), which sets it for all threads.
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        umask = next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))
    if umask & 0o020:
        why = f"the umask is {umask:03o}. Other users cannot write to directories that this one makes"
        yield finding.warning("umask-of-one", "the cache is shared, and the umask forbids it", why, "umask 002")


# A cold compile of a large model takes hundreds of MB and thousands of files; precompiled headers alone 300 MB.
_LEAST_BYTES = 1 << 30
_LEAST_INODES = 10_000


def check_space(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about too little space, or too few inodes, on each file system of one of the directories."""
    for those in group_places(lambda path: os.stat(path).st_dev, list_places(environ)):
        room = os.statvfs(find_nearest(those[0].path))
        yield from _check_room(those, room)
        limit = config.current().max_bytes
        size = room.f_blocks * room.f_frsize
        if limit is not None and any(place.is_cache for place in those) and limit > size:
            why = f"{those[0]} is on a file system of {write_size(size)}. The disk fills before anything is evicted"
            remedy = f"export SAFECACHE_LIMITS=bytes={size // 2}"
            what = f"the limit of {write_size(limit)} in SAFECACHE_LIMITS is never reached"
            yield finding.warning("limit-beyond-disk", what, why, remedy)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < _LEAST_BYTES:
        why = f"this process may write files of {write_size(most)} at most. A larger one ends it by SIGXFSZ"
        yield finding.warning("file-size-limit", "the size of files is limited", why, "ulimit -f unlimited")


def _check_room(those: list[Place], room: os.statvfs_result) -> Iterator[Finding]:
    names = ", ".join(map(str, those))
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_BYTES:
        # Reserved for root, or beyond a quota, if the file system takes that into account.
        withheld = (room.f_bfree - room.f_bavail) * room.f_frsize
        rest = f"; {write_size(withheld)} more are reserved, or beyond a quota" if withheld > 0 else ""
        total = write_size(room.f_blocks * room.f_frsize)
        why = f"{write_size(free)} of {total} are free{rest}. A compile may fail to save its result"
        yield finding.warning("low-space", f"little space is left for {names}", why, _find_remedy(those))
    if room.f_files and room.f_favail < _LEAST_INODES:
        why = f"{room.f_favail} of {room.f_files} inodes are free, and each file takes one. Saves may fail"
        yield finding.warning("low-inodes", f"few inodes are left for {names}", why, _find_remedy(those))


def _find_remedy(those: list[Place]) -> str:
    caches = [place.path for place in those if place.is_cache and os.path.isdir(place.path)]
    if caches:
        return f"safecache gc --max-age 7d {shlex.join(caches)}"
    return f"{load_errors.make_export(those[0].variable)}  # on another file system, or make room there"


def check_execution(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about directories on a noexec mount, and about a SAFECACHE_EXEC_DIR that is not used."""
    chosen = config.current().exec_dir
    if chosen is not None:
        if (against := exec_directory.find_objection(chosen)) is not None:
            remedy = f"install -d -m 0755 {shlex.quote(chosen)}  # by you or root, on a file system that is not noexec"
            why = f"{against}. Code cannot be loaded from a noexec cache"
            yield finding.error("exec-dir-unusable", f"SAFECACHE_EXEC_DIR={chosen} is not used", why, remedy)
    else:
        for place in list_caches(environ):
            if mounts.is_noexec(place.path):
                why = f"it is on {mounts.find_mount(place.path)}, a noexec mount. Each load of compiled code fails"
                yield finding.error(
                    "noexec", f"no code can be loaded from {place}", why, suggest_directory(place.variable)
                )


def check_packages(_: Mapping[str, str]) -> Iterator[Finding]:
    """AOTInductor's packages are unpacked to the temporary directory, and loaded from there."""
    with suppress(FileNotFoundError):
        moves = provenance.torch_release() >= packages.PACKAGES_OBEY_TMPDIR_FROM
        directory = tempfile.gettempdir() if moves else "/tmp"
        if mounts.is_noexec(directory):
            mount = mounts.find_mount(directory)
            why = f"torch unpacks them to {directory}, on {mount}, a noexec mount. Each load of a package fails"
            point = mount.point if mount else directory
            remedy = suggest_directory("TMPDIR") if moves else f"mount -o remount,exec {shlex.quote(point)}"
            yield finding.warning("noexec-packages", "AOTInductor packages cannot be loaded", why, remedy)


def check_file_systems(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding for each mount of one of the directories, and others about its options."""
    found = list_places(environ)
    for those in group_places(mounts.find_mount, found):
        mount = mounts.find_mount(find_nearest(those[0].path))
        if mount is not None:
            yield _describe_mount(mount, those)
            yield from _check_options(mount, those)


def _describe_mount(mount: Mount, those: list[Place]) -> Finding:
    where, on = ", ".join(map(str, those)), f"{mount}{_describe_room(mount.point)}"
    cache = next((place for place in those if place.is_cache), None)
    if mount.file_system in _MEMORY:
        why = f"it is {on}. It counts against a container's memory limit, and is empty after a restart"
        remedy = f"{load_errors.make_export(those[0].variable)}  # on a disk, if it is to be kept"
        return finding.info("in-memory", f"memory holds {where}", why, remedy)
    if mounts.is_over_a_network(find_nearest(those[0].path)):
        remedy = _NODE_DISK if cache and not config.current().local else ""
        why = f"it is {on}. Each hit asks the server, and locks may hold on one host alone"
        return finding.info("network-file-system", f"a network file system holds {where}", why, remedy)
    if mount.file_system == "overlay":
        why = f"it is {on}. Unless that is a volume, it is gone with the container"
        remedy = f"{load_errors.make_export(those[0].variable)}  # on a volume"
        return finding.info("container-layer", f"a container's layer holds {where}", why, remedy)
    return finding.ok("file-system", f"a disk holds {where}", f"it is {on}")


def _describe_room(point: str) -> str:
    try:
        room = os.statvfs(point)
    except OSError:
        return ""
    inodes = f" and {room.f_favail} inodes" if room.f_files else ""
    return f", {write_size(room.f_bavail * room.f_frsize)} of {write_size(room.f_blocks * room.f_frsize)}{inodes} free"


def _check_options(mount: Mount, those: list[Place]) -> Iterator[Finding]:
    local = sorted(_LOCAL_LOCKS.intersection(mount.options))
    if local:
        why = f"{mount} has {', '.join(local)}. Hosts compile the same kernels at once"
        remedy = f"mount -o remount,lock,local_lock=none {shlex.quote(mount.point)}  # or mount it anew with these"
        yield finding.warning("locks-of-one-host", f"locks on {mount.point} hold on one host alone", why, remedy)
    caches = [place for place in those if place.is_cache and os.path.isdir(place.path)]
    if "ro" in mount.options and caches:
        why = f"it is {mount}. Its entries are used, and none are added"
        layers = ":".join(place.path for place in caches)
        remedy = f"export SAFECACHE_TIERS={shlex.quote(layers)} {caches[0].variable}=DIR  # where DIR can be written"
        yield finding.warning(
            "read-only-file-system", f"a read-only mount holds {', '.join(map(str, caches))}", why, remedy
        )


def check_local_level(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about a local tier that saves nothing."""
    local = config.current().local
    if local is None:
        return
    place = find_nearest(local)
    if mounts.is_over_a_network(place):
        why = f"it is on {mounts.find_mount(place)}. It saves no request to a server"
        yield finding.warning("local-level-is-remote", f"the local tier {local} is not on this node", why, _NODE_DISK)
    shared = find_nearest(list_caches(environ)[0].path)
    if os.stat(place).st_dev == os.stat(shared).st_dev:
        why = f"{shared} is on the same file system. Everything is stored there twice"
        remedy = f"{_NODE_DISK}; or unset it"
        yield finding.warning("local-level-gains-nothing", f"the local tier {local} saves no time", why, remedy)


_NODE_DISK = "export SAFECACHE_TIERS=DIR,cache  # DIR on a disk of this node"
_PREFIX = ".safecache-probe-"
# Seconds between the clocks of a file server and this host. Files used within an hour count as in use.
_MOST_SKEW = 300.0
_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def check_behaviour(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about what does not work, tried out on each file system of one of the directories."""
    for those in group_places(lambda path: os.stat(path).st_dev, list_places(environ)):
        for place in those:
            directory = find_nearest(place.path)
            if os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
                yield from _try_steps(place, directory)
                break


def _try_steps(place: Place, directory: str) -> Iterator[Finding]:
    where = f"{directory}, where {place.noun} is to be," if directory != place.path else str(place)
    try:
        with folders.create_scratch(directory, _PREFIX) as probe:
            remedy = f"{load_errors.make_export(place.variable)}  # on another file system"
            found = [each for step in _STEPS for each in step(probe.path, where, remedy)]
    except OSError as error:
        why = f"{error.strerror}. Renames, locks and syncs were not tried"
        yield finding.info("not-probed", f"{where} could not be tried out", why)
        return
    mount = mounts.find_mount(directory)
    yield from found or [finding.ok("behaviour", "renames, locks and syncs work", f"on {mount or directory}")]


def _try_write(probe: str, where: str, remedy: str) -> Iterator[Finding]:
    descriptor = os.open(os.path.join(probe, "synced"), _CREATE, 0o600)
    try:
        os.write(descriptor, bytes(4096))
        os.fsync(descriptor)
        skew = os.fstat(descriptor).st_mtime - time.time()
    except OSError as error:
        why = f"{error.strerror}. {LOST}"
        yield finding.error("no-sync", f"no file can be synced on {where}", why, remedy)
        return
    finally:
        os.close(descriptor)
    if abs(skew) > _MOST_SKEW:
        why = f"it differs from this machine's by {skew:+.0f} s. Files in use may be evicted as old"
        clocks = "timedatectl set-ntp true  # on both"
        yield finding.warning("clock-skew", f"the clock of {where} is wrong", why, clocks)


def _try_rename(probe: str, where: str, remedy: str) -> Iterator[Finding]:
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
        why = f"{wrong}. {LOST}"
        yield finding.error("no-rename", f"no file can be renamed over another on {where}", why, remedy)


def _try_lock(probe: str, where: str, remedy: str) -> Iterator[Finding]:
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
        why = f"{wrong}. Processes compile the same kernels at once"
        yield finding.warning("no-locks", f"locks do not work on {where}", why, remedy)


def _try_link(probe: str, where: str, _: str) -> Iterator[Finding]:
    path = os.path.join(probe, "name")
    with open(path, "wb"):
        pass
    try:
        os.link(path, os.path.join(probe, "other"))
    except OSError as error:
        why = f"{error.strerror}. Locks are used instead"
        yield finding.info("no-hard-links", f"hard links do not work on {where}", why)


_STEPS: tuple[Callable[[str, str, str], Iterator[Finding]], ...] = (_try_write, _try_rename, _try_lock, _try_link)
