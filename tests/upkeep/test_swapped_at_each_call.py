"""Somebody who can write to a cache exchanges one of its directories, or files, at any call that a command makes.

For a link to a copy of the same elsewhere, a FIFO, a device or a directory: nothing of that copy is read, changed, moved
or removed, nothing hangs and no traceback is printed. One moment of each command and place in every run; each of them,
of the calls that Python tells of and of those of the store, with SAFECACHE_TEST_EXHAUSTIVE=1.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from functools import partial

import pytest

from safecache.fs import filesystem
from safecache.upkeep import eviction
from upkeep import swaps
from upkeep.swaps import ACTIONS, HOW, PLACES, TASKS, exchange, prepare, state

MOMENTS = 10_000 if os.environ.get("SAFECACHE_TEST_EXHAUSTIVE") else 1
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
    """The calls of the store count too, and none that looks at the processes of this machine."""

    def watched(real):
        def call(*rest, **named):
            moments.tick()
            return real(*rest, **named)

        return call

    for name in ("descend", "lstat", "stat", "unlink", "rename", "read", "write", "close"):
        monkeypatch.setattr(filesystem, name, watched(getattr(filesystem, name)))
    monkeypatch.setattr(eviction, "list_mapped_files", dict)


@pytest.fixture
def world(tmp_path):
    """A cache, made anew for each attempt, and a copy of it elsewhere, of which each file would tell of its being read."""
    template, mirror, root = tmp_path / "template", tmp_path / "mirror", tmp_path / "cache"
    prepare(template, mirror)
    return template, mirror, root


@pytest.mark.timeout(7200 if MOMENTS > 10 else 300, method="thread")
@pytest.mark.parametrize("action", ACTIONS)
def test_whatever_is_exchanged_and_when(world, moments, seam, monkeypatch, action):
    template, mirror, root = world
    if action in TASKS:  # a command is told which
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    chance = random.Random(action)

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
            path, how = chance.choice(found).relative_to(template), chance.choice(["link", "link", *HOW])
            anew()
            moments.counted(lambda: ACTIONS[action](root), partial(exchange, root / path, mirror / path, how), at)
            after = state(mirror)
            if after != before:
                changed = [str(each.relative_to(mirror)) for each in before if after.get(each) != before[each]]
                bad.append((str(path), at, changed))
                before = after
    assert bad == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_whatever_another_user_exchanges_at_random():
    done = subprocess.run(
        [sys.executable, swaps.__file__, "--seconds", "1"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
