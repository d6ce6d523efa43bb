"""Sweeps beside writers and readers, in processes of their own: nobody fails, and nobody reads what was not written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE
from helpers.caches import Cache

from safecache.upkeep import eviction, inventory
from safecache.upkeep.eviction import Limits

TESTS = Path(__file__).parents[1]
PREAMBLE = f"""
import os, random, sys, time
sys.path[:0] = [{str(SOURCE)!r}, {str(TESTS)!r}]
from helpers.caches import HOUR, key
from safecache.fs import stamps; from safecache.places import layout
from safecache.store import entry_files; from safecache.upkeep import eviction
root, seconds = sys.argv[1], 6.0
chosen = random.Random(os.getpid())
end = time.monotonic() + seconds
def directory(n):
    return os.path.join(root, "aotautograd", key("a", str(n)))
def content(n):
    return str(n).encode() * 1000
"""
# What is published at once has a stamp of two hours ago, and so can go.
WRITER = """
while time.monotonic() < end:
    n = chosen.randrange(50)
    path = os.path.join(directory(n), str(n))
    entry_files.publish(path, content(n), root)
    try:
        os.utime(path, (time.time() - 2 * HOUR,) * 2)
    except FileNotFoundError:
        pass  # swept
"""
# What is read has a new stamp from then on, and then is there as long as it has one.
READER = """
read = 0
while time.monotonic() < end:
    n = chosen.randrange(50)
    for name in layout.list_entries(directory(n)):
        try:
            found = entry_files.read_unverified_entry(os.path.join(directory(n), name))
        except FileNotFoundError:
            continue
        assert found == content(n), n
        read += 1
assert read
"""
SWEEPER = """
removed = 0
while time.monotonic() < end:
    done = eviction.sweep(root, eviction.Limits(age=HOUR))
    if done is None:
        continue
    removed += len(done.removed)
    assert {why for _, why in done.kept} <= {"it was used just now"}, done.kept
print(removed)
"""


@pytest.mark.default_release
@pytest.mark.timeout(120, method="thread")
def test_sweeps_beside_writers_and_readers(tmp_path):
    cache = Cache(tmp_path / "cache")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code, str(cache.root)],
            env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for code in (WRITER, WRITER, READER, READER, SWEEPER, SWEEPER)
    ]
    said = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * len(started), said
    assert sum(int(out) for out, _ in said if out) > 0
    found = inventory.take_inventory(str(cache.root))
    # A writer whose directory was away for a moment does not find its temporary file: it is removed as a dead one's.
    entries = [path for path in cache.files() if path.suffix != ".tmp"]
    assert len(entries) <= 50 and all(path.read_bytes() == path.name.encode() * 1000 for path in entries)
    for path in cache.files():
        os.utime(path, (0, 0))
    done = eviction.sweep(str(cache.root), Limits(age=1))
    assert found.other == done.kept == cache.files() == []
