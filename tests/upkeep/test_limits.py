"""Limits that are set keep themselves: a publishing starts a sweep, one at a time, and not often."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from helpers.caches import DAY, Cache

from safecache import session
from safecache.places import layout
from safecache.ports import Published, observe
from safecache.reporting import events
from safecache.store import entry_files
from safecache.upkeep import limits


@pytest.fixture
def started(monkeypatch):
    """The commands that were started, and not run."""
    commands = []
    session.reset()
    monkeypatch.setattr(limits, "_start_sweep", commands.append)
    observe(Published, limits.keep)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    return commands


def publish(root, name="entry"):
    entry_files.publish(str(root / "key" / name), b"content", str(root))


def test_without_limits_publishing_starts_nothing_and_leaves_nothing(tmp_path, started):
    publish(tmp_path)
    assert started == [] and not (tmp_path / ".safecache").exists()


@pytest.mark.parametrize("variable", ["SAFECACHE_MAX_BYTES", "SAFECACHE_MAX_FILES"])
def test_publishing_starts_one_sweep_in_a_while(tmp_path, started, settings, variable, monkeypatch):
    settings(**{variable: 10**6})
    for name in "abc":
        publish(tmp_path, name)
    assert [command[-3:] for command in started] == [["gc", "--quiet", str(tmp_path)]]
    limits._next.reset()  # as in another process
    publish(tmp_path)
    assert len(started) == 1
    stamp = tmp_path / ".safecache" / "gc.stamp"
    os.utime(stamp, (time.time() - 700,) * 2)
    publish(tmp_path)
    assert len(started) == 1  # this process does not even look
    limits._next.reset()
    publish(tmp_path)
    assert len(started) == 2 and abs(time.time() - stamp.stat().st_mtime) < 60


def test_stamp_of_a_clock_that_was_wrong_stops_no_sweep(tmp_path, started, settings):
    settings(SAFECACHE_MAX_AGE="30d")
    publish(tmp_path)
    limits._next.reset()
    os.utime(tmp_path / ".safecache" / "gc.stamp", (time.time() + 30 * DAY,) * 2)
    publish(tmp_path)
    assert len(started) == 2


def test_sweep_that_cannot_be_started_is_one_warning_and_no_error(tmp_path, settings, monkeypatch, caplog, run):
    aged = Cache(tmp_path, time.time()).aot("old", 40 * DAY)
    limits._next.reset()
    monkeypatch.setattr(limits.sys, "executable", "/nowhere/python")
    settings(SAFECACHE_MAX_AGE="30d", SAFECACHE_STRICT=1)
    publish(tmp_path)
    limits._next.reset()
    (tmp_path / ".safecache" / "gc.stamp").unlink()
    publish(tmp_path)
    assert events.read_counters()["over limit"] == 2
    [record] = caplog.records
    assert "No such file or directory: '/nowhere/python'" in record.message and "safecache gc" in record.message
    assert aged.exists() and run("gc", tmp_path).code == 0 and not aged.exists()


@pytest.mark.parametrize(
    ("root", "cache", "expected"),
    [
        ("/c", "/c", "/c"),
        ("/c/triton/0", "/c", "/c"),
        ("/other/triton/0", "/c", "/other/triton/0"),
        ("/cc", "/c", "/cc"),
        ("/tmp/torchinductor_me/precompiled_headers/safecache-1", "/c", "/tmp/torchinductor_me/precompiled_headers"),
        ("/srv/triton", None, "/srv/triton"),
    ],
)
def test_sweep_is_of_the_whole_cache(root, cache, expected):
    environ = {"TORCHINDUCTOR_CACHE_DIR": cache} if cache else {}
    assert layout.find_whole_cache(root, environ) == expected


def test_started_sweep_keeps_the_limit_and_is_waited_for(tmp_path, settings, monkeypatch):
    cache = Cache(tmp_path / "cache", time.time())
    cache.aot("old", 40 * DAY)
    limits._next.reset()
    settings(SAFECACHE_MAX_AGE="30d")
    processes = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        limits.subprocess, "Popen", lambda *rest, **how: processes.append(popen(*rest, **how)) or processes[-1]
    )
    publish(cache.root)
    [process] = processes
    assert process.wait(60) == 0
    assert {path.name for path in cache.files()} == {"entry", "gc.stamp"}
    assert not (cache.root / "aotautograd" / "old").exists() and len(cache.files()) == 2
