"""Somebody who can write to a cache exchanges one of its directories, or files, at any call that a command makes.

For a link to a copy of the same elsewhere, or for a FIFO: nothing of that copy is read, changed, moved or removed, nothing
hangs and no traceback is printed. Two moments of each command and place in every run; each of them, of the calls that
Python tells of and of those of the store, with SAFECACHE_TEST_EXHAUSTIVE=1.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from caches import DAY, HOUR, Cache, key
from crashes.test_crash_reports import facts

from safecache import adopt, eviction, filesystem, key_records, layout, store, temporaries
from safecache.cli.main import main
from safecache.eviction import Limits
from safecache.isolation import known_bad, reports
from safecache.key_records import KeyRecord
from safecache.lookups import Layer
from safecache.reasons import Reason

MOMENTS = 10_000 if os.environ.get("SAFECACHE_TEST_EXHAUSTIVE") else 2
EVENTS = {
    "open",
    *(f"os.{name}" for name in ("scandir", "listdir", "rename", "remove", "rmdir", "mkdir", "utime", "link")),
}


class _Moments:
    """Counts the calls of this process, and does something at one of them."""

    def __init__(self) -> None:
        self.act = None
        self.number = self.at = 0

    def tick(self, *_: object) -> None:
        act = self.act
        if act is None:
            return
        self.number += 1
        if self.number == self.at:
            self.act = None
            act()
            self.act = lambda: None

    def counted(self, action, act=lambda: None, at=0) -> int:
        """How many calls there were."""
        self.number, self.at, self.act = 0, at, act
        try:
            action()
        finally:
            self.act = None
        return self.number


@pytest.fixture(scope="module")
def moments():
    moments = _Moments()
    sys.addaudithook(lambda event, _: moments.tick() if event in EVENTS else None)
    return moments


@pytest.fixture
def seam(moments, monkeypatch):
    """The calls of the store count too."""

    def watched(real):
        def call(*rest, **named):
            moments.tick()
            return real(*rest, **named)

        return call

    for name in ("descend", "lstat", "stat", "unlink", "rename", "read", "write", "close"):
        monkeypatch.setattr(filesystem, name, watched(getattr(filesystem, name)))


def fill(root: Path) -> None:
    """Something of everything that a cache holds, new and old."""
    cache = Cache(root, time.time())
    for age in (HOUR, 30 * DAY):
        for make in (cache.aot, cache.fx, cache.code, cache.kernel, cache.header, cache.quarantined, cache.crash):
            make(f"{age}", age)
        cache.key_record(f"{age}", age)
        cache.known_bad(f"{age}", age)
        cache.journal(f"{age}", age)
    for number in range(2):  # one is adopted and then signed anew, the other is damaged
        content = pickle.dumps(number)
        cache.file(root / "aotautograd" / key("a", f"good {number}") / layout.entry_name(content), HOUR, content)
    (root / ".safecache" / "trash" / "0123456789abcdef").mkdir(parents=True)
    (root / "fxgraph" / ".1.2.tmp").touch()
    os.utime(root / "fxgraph" / ".1.2.tmp", (0, 0))


def command(*words):
    """Its exit code; what it prints has no traceback."""

    def run(root):
        place = ["--in", root] if words[0] == "quarantine" else [root]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = main([words[0], *map(str, place), *words[1:]])
            except SystemExit as end:
                code = end.code
        assert code in (0, 1) and "Traceback" not in said.getvalue(), said.getvalue()

    return run


def task(work):
    """What a process does beside its compiles. It may fail, as with any cache that cannot be used."""

    def run(root):
        with contextlib.suppress(OSError, store.UnusableEntry):
            work(str(root))

    return run


def publish(root):
    for path in ("aotautograd/akey/entry", "triton/0/KEY/k.cubin", ".safecache/records/ab/record"):
        temporaries._reaped.clear()
        store.publish(os.path.join(root, path), b"content", root)


def look_up(root):
    for location in layout.walk(root):
        with contextlib.suppress(OSError, store.UnusableEntry):
            store.read_entry(location.path)


def set_aside(root):
    for location in layout.walk(root):
        store.quarantine(location.path, root, Reason.DAMAGED)


def remember(root):
    key_records.remember(KeyRecord(Layer.AOT, key("a", "x"), "model.f", 0.0, ()), root)


COMMANDS = {
    "gc": command("gc", "--max-age", "1d"),
    "clean": command("clean", "--force"),
    "adopt": command("adopt"),
    "sign": command("sign"),
    "verify": command("verify"),
    "ls": command("ls"),
    "du": command("du"),
    "quarantine list": command("quarantine", "list"),
}
TASKS = {
    "publish": task(publish),
    "look up": task(look_up),
    "set aside": task(set_aside),
    "sweep": task(lambda root: eviction.sweep(root, Limits(age=DAY), now=time.time())),
    "crash report": task(lambda root: reports.write(root, facts("ab" * 32))),
    "note of a crash": task(partial(known_bad.forget, hash="ab" * 32)),
    "record of a key": task(remember),
}
ACTIONS = COMMANDS | TASKS
PLACES = [
    *("aotautograd", "fxgraph", "triton", "triton/0", "locks", "precompiled_headers"),
    *(".safecache", ".safecache/quarantine", ".safecache/records", ".safecache/keys", ".safecache/trash"),
    *("aotautograd/*", "aotautograd/*/*", "triton/0/*", "triton/0/*/*", ".safecache/quarantine/*", "??", "??/*"),
]


@pytest.fixture
def world(tmp_path):
    """A cache, made anew for each attempt, and a copy of it elsewhere, of which each file would tell of its being read."""
    template, mirror, root = tmp_path / "template", tmp_path / "mirror", tmp_path / "cache"
    fill(template)
    adopt.adopt(str(template))
    shutil.copytree(template, mirror, symlinks=True)
    for path in mirror.rglob("*"):
        if path.is_file():
            os.utime(path, (0, path.stat().st_mtime))
    return template, mirror, root


def state(directory):
    """Of each file what it holds, and when it was changed, moved and read; of each directory what is in it."""
    return {
        path: (status.st_ino, status.st_mtime_ns, path.is_file() and (status.st_ctime_ns, status.st_atime_ns))
        for path in directory.rglob("*")
        for status in [path.lstat()]
    }


def exchange(path, mirror, how):
    """What is at ``path`` for a link, or a FIFO; nothing if it is gone by now."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"{path.name}.before"))
    with contextlib.suppress(OSError):
        path.symlink_to(mirror) if how == "link" else os.mkfifo(path)


@pytest.mark.timeout(1800 if MOMENTS > 10 else 300, method="thread")
@pytest.mark.parametrize("how", ["link", "FIFO"])
@pytest.mark.parametrize("action", ACTIONS)
def test_whatever_is_exchanged_and_when(world, moments, seam, monkeypatch, action, how):
    template, mirror, root = world
    if action in TASKS:  # a command is told which
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    chance = random.Random(f"{action} {how}")

    def anew():
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(template, root, symlinks=True)

    anew()
    total = moments.counted(lambda: ACTIONS[action](root))
    assert total > 2
    before, bad = state(mirror), []
    for pattern in PLACES:
        found = sorted(template.glob(pattern))
        assert found, pattern
        for at in sorted(chance.sample(range(1, total + 1), min(total, MOMENTS))):
            path = chance.choice(found).relative_to(template)
            anew()
            moments.counted(lambda: ACTIONS[action](root), partial(exchange, root / path, mirror / path, how), at)
            after = state(mirror)
            if after != before:
                changed = [str(each.relative_to(mirror)) for each in before if after.get(each) != before[each]]
                bad.append((str(path), at, changed))
                before = after
    assert bad == []
