"""A writer that is killed, at whatever system call, leaves the old file or the new one, and nothing that stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import SOURCE

from safecache import store

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

OLD, NEW = b"old" * 5000, b"new" * 7000
START = "/where-it-starts"
CODE = f"""
import os, sys
from safecache import store
root = sys.argv[1]
os.path.exists({START!r})
store.publish(os.path.join(root, "key", "entry"), {NEW!r}, root)
"""
# What publishing does to files. Others, such as for memory, change nothing that outlives the process.
CALLS = ["mkdir", "openat", "flock", "dup", "fcntl", "write", "fsync", "close", "rename", "getdents64"]


def publish(root, *options):
    """In a process, under strace with these options."""
    command = ["strace", "-f", "-qq", "-o", str(root.parent / "trace"), *options, sys.executable, "-S", "-c", CODE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
    environment |= {"SAFECACHE_FSYNC": "always", "PYTHONHASHSEED": "0", "HOME": str(root.parent)}
    return subprocess.run([*command, str(root)], env=environment, capture_output=True, text=True)


def before_it_starts(root):
    """How often each call is made until then, and how often in all."""
    done = publish(root, "-e", "trace=" + ",".join([*CALLS, "newfstatat", "stat"]))
    assert done.returncode == 0, done.stderr
    counts, total = dict.fromkeys(CALLS, 0), dict.fromkeys(CALLS, 0)
    started = False
    for line in (root.parent / "trace").read_text().splitlines():
        name = line.split(None, 1)[1].split("(")[0]
        started = started or START in line
        if name in total:
            total[name] += 1
            counts[name] += not started
    assert started
    return counts, total


@pytest.mark.parametrize("there", [True, False], ids=["replaced", "first"])
@pytest.mark.parametrize("call", CALLS)
def test_writer_is_killed_at_each_call(tmp_path, call, there):
    root = tmp_path / "cache"
    entry = root / "key" / "entry"

    def prepare():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        if there:
            store.publish(str(entry), OLD, str(root))

    prepare()
    counts, total = before_it_starts(root)
    killed = 0
    for number in range(counts[call] + 1, total[call] + 1):
        prepare()
        done = publish(root, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        killed += done.returncode != 0
        found = entry.read_bytes() if entry.exists() else None
        assert found in ((OLD, NEW) if there else (None, NEW)), f"{call} {number}"
        left = list(root.rglob(".*.tmp"))
        assert len(left) <= 1
        for path in left:
            os.utime(path, (time.time() - 7200,) * 2)
        assert publish(root).returncode == 0
        assert entry.read_bytes() == NEW and [path.name for path in entry.parent.iterdir()] == ["entry"]
    assert killed or total[call] == counts[call], (counts, total)
