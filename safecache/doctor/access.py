"""Who may use the directories: this user must be able to, and others should not."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping

from safecache.doctor import finding, places
from safecache.doctor.finding import Finding
from safecache.doctor.places import Place
from safecache.files import ownership
from safecache.settings import config

__all__ = ["check"]

_USE = os.R_OK | os.W_OK | os.X_OK
_ON_PURPOSE = "  # or, if it is shared on purpose: export SAFECACHE_SHARED=1"


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
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
