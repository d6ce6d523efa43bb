"""One thing at a time that is wrong with Inductor's cache directory, or with one that it needs besides."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

STRANGER = 12345


class Case:
    """What is broken.

    ``broken`` is a context manager that breaks a home and mends it; the scene runs in between, ``how`` it says.

    ``stock``: whether stock torch fails there, cold and warm (None: it depends). ``strict``: the error of strict mode,
    None where it may be that there is none. ``warnings``: the most of them.
    """

    def __init__(self, broken, *, stock=(True, True), strict="CacheWriteError", warnings=1, env=None, **how) -> None:
        self.broken = broken
        self.stock = stock
        self.strict = strict
        self.warnings = warnings
        self.env = env or {}
        self.how = how


@contextlib.contextmanager
def mode(home, change, place: Callable[[Path], Path] = lambda cache: cache, *, recursive=False) -> Iterator[None]:
    """``place`` has another mode, for a user whom modes bind."""
    path = place(home.cache)
    path.mkdir(parents=True, exist_ok=True)
    before = {p: p.stat().st_mode & 0o7777 for p in ([path, *path.rglob("*")] if recursive else [path])}
    for changed in reversed(before):
        changed.chmod(before[changed] & ~0o222 if change is None else change)
    try:
        yield
    finally:
        for changed, was in before.items():
            changed.chmod(was)


@contextlib.contextmanager
def mounted(home, options, *, filled=False, remounted="") -> Iterator[None]:
    """The cache, with what is in it, lies on a file system of its own; as an image's layer, or a volume, might."""
    saved = home.base / "saved"
    home.cache.mkdir(exist_ok=True)
    shutil.copytree(home.cache, saved, symlinks=True)
    shutil.rmtree(home.cache)
    home.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=755", "none", str(home.cache)], check=True)
    try:
        shutil.copytree(saved, home.cache, symlinks=True, dirs_exist_ok=True)
        if filled:
            fill(home.cache)
        if remounted:
            subprocess.run(["mount", "-o", f"remount,{remounted}", str(home.cache)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(home.cache)], check=True)
        shutil.copytree(saved, home.cache, symlinks=True, dirs_exist_ok=True)


def fill(directory) -> None:
    with contextlib.suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def foreign(home) -> Iterator[None]:
    """Another user has made the cache."""
    home.cache.mkdir(exist_ok=True)
    for path in (home.cache, *home.cache.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    try:
        yield
    finally:
        for path in (home.cache, *home.cache.rglob("*")):
            os.chown(path, 0, 0, follow_symlinks=False)


@contextlib.contextmanager
def in_the_way(home, *places, is_linked=False) -> Iterator[None]:
    """A file, or a link to one, lies where a directory should be: the cache, or those below it."""
    aside = home.base / "aside"
    aside.mkdir()
    paths = [home.cache / place for place in places]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            path.rename(aside / str(number))
        if is_linked:
            (home.base / "elsewhere").write_text("not a directory")
            path.symlink_to(home.base / "elsewhere")
        else:
            path.write_text("in the way")
    try:
        yield
    finally:
        for number, path in enumerate(paths):
            path.unlink()
            if (aside / str(number)).exists():
                (aside / str(number)).rename(path)


@contextlib.contextmanager
def closed_parent(home) -> Iterator[None]:
    """The cache is not there, and cannot be made."""
    closed = home.base / "closed"
    closed.mkdir()
    if home.cache.exists():
        home.cache.rename(home.base / "saved")
    home.cache.symlink_to(closed / "cache")
    closed.chmod(0o555)
    try:
        yield
    finally:
        home.cache.unlink()
        closed.chmod(0o755)
        if (home.base / "saved").exists():
            (home.base / "saved").rename(home.cache)


@contextlib.contextmanager
def held_locks(home) -> Iterator[None]:
    """Each lock of the compile is held by a process that does nothing."""
    names = [path.name for path in (home.template.cache / "locks").iterdir()]
    (home.cache / "locks").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for name in names:
            file = held.enter_context((home.cache / "locks" / name).open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def read_only_hashes(home) -> Iterator[None]:
    """The directories that sources and libraries lie in may not be written."""
    paths = [home.cache / path.name for path in home.template.cache.glob("??")]
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(0o755)


@contextlib.contextmanager
def temporary(home, *, full=False, change=None, options="size=1m") -> Iterator[None]:
    """TMPDIR, which compilers use, is full or cannot be written."""
    place = home.base / "tmp"
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], check=True)
    try:
        if full:
            fill(place)
        place.chmod(0o777 if change is None else change)
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _locks(cache: Path) -> Path:
    return cache / "locks"


CASES = {
    "read-only": Case(lambda h: mode(h, None, recursive=True), unprivileged=True),
    "read-only file system": Case(lambda h: mounted(h, "size=50m", remounted="ro")),
    "unreadable": Case(lambda h: mode(h, 0o000), unprivileged=True, stock=(True, None)),
    "not to be entered": Case(lambda h: mode(h, 0o600), unprivileged=True, stock=(True, None)),
    "foreign owner": Case(foreign, unprivileged=True, strict=None, warnings=6),
    "file in the way": Case(lambda h: in_the_way(h, "")),
    "not creatable": Case(closed_parent, unprivileged=True),
    "disk full": Case(lambda h: mounted(h, "size=8m", filled=True), stock=(True, False), strict=None),
    "disk nearly full": Case(lambda h: mounted(h, "size=24k"), stock=(None, None), strict=None),
    "inodes full": Case(lambda h: mounted(h, "size=50m,nr_inodes=3"), stock=(True, None)),
    "inodes nearly full": Case(lambda h: mounted(h, "size=50m,nr_inodes=9"), stock=(True, None)),
    "noexec": Case(lambda h: mounted(h, "size=50m,noexec"), strict="ExecutionError"),
    "locks read-only": Case(lambda h: mode(h, 0o555, _locks), unprivileged=True, stock=(True, False), strict=None),
    "locks not to be entered": Case(lambda h: mode(h, 0o000, _locks), unprivileged=True),
    "locks is a file": Case(lambda h: in_the_way(h, "locks"), stock=(None, True), strict=None),
    "locks is a link": Case(lambda h: in_the_way(h, "locks", is_linked=True), stock=(True, True), strict=None),
    "locks held": Case(held_locks, stock=(None, None), env={"SAFECACHE_LOCK_TIMEOUT": "0.5"}),
    "hash directories read-only": Case(read_only_hashes, unprivileged=True, stock=(True, False), strict=None),
    "temporary directory full": Case(lambda h: temporary(h, full=True), stock=(True, False), strict=None),
    "temporary directory read-only": Case(
        lambda h: temporary(h, change=0o555), unprivileged=True, strict=None, stock=(None, False)
    ),
}
# What a tmpfs of this size or with these inodes cannot hold.
COLD_ONLY = ("disk nearly full", "inodes full", "inodes nearly full", "file in the way")
