"""A sweep that is killed, at whatever system call, leaves each group whole, gone or a miss, and the next one goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE
from helpers.caches import DAY, NOW, Cache, key

from safecache.reporting.kinds import Kind
from safecache.upkeep import eviction, inventory
from safecache.upkeep.eviction import Limits

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.default_release,
]

CODE = f"""
import sys
from safecache.upkeep import eviction
eviction.sweep(sys.argv[1], eviction.Limits(age=1), now={NOW})
"""
# All by which a sweep changes something.
CALLS = ["mkdirat", "renameat", "unlinkat"]


def fill(root):
    cache = Cache(root)
    cache.aot("a", 30 * DAY, ["fw"])
    cache.fx("fw", 30 * DAY)
    cache.quarantined("q", 30 * DAY)
    cache.kernel("k", 30 * DAY)
    cache.code("c", 30 * DAY)
    cache.aot("fresh", 0, ["graph"])
    cache.fx("graph", 30 * DAY)
    cache.file(root / ".safecache" / "trash" / "0123456789abcdef" / "left", 0)


def sweep(root, *options):
    """In a process, under strace with these options."""
    command = ["strace", "-f", "-qq", "-o", str(root.parent / "trace"), *options, sys.executable, "-S", "-c", CODE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
    return subprocess.run([*command, str(root)], env=environment, capture_output=True, text=True)


def calls_of_a_sweep(root, call):
    """The numbers, among all such calls of the process, of those that concern the cache."""
    done = sweep(root, "-e", f"trace={call}", "-y")
    assert done.returncode == 0, done.stderr
    lines = [line for line in (root.parent / "trace").read_text().splitlines() if f" {call}(" in line]
    return [number for number, line in enumerate(lines, 1) if str(root) in line]


def check(root):
    """Nothing that a process would stumble over."""
    found = inventory.take_inventory(str(root))
    names = {group.name for group in found.groups}
    assert {key("a", "fresh"), key("f", "graph")} <= names
    assert key("a", "a") not in names or key("f", "fw") in names
    for group in found.groups:
        paths = {file.path for file in group.files}
        if group.kind is Kind.KERNEL:
            listed = any("__grp__" in path for path in paths)
            assert len(paths) == (3 if listed else 2) and len(group.records) >= len(paths)
        elif group.kind is Kind.NATIVE_CODE:
            assert group.records or not any(path.endswith(".so") for path in paths)
        elif group.kind in (Kind.AOT_ENTRY, Kind.FX_ENTRY):
            assert len(paths) == 1


@pytest.mark.parametrize("call", CALLS)
def test_sweep_is_killed_at_calls_of_each_sort(tmp_path, call):
    """At the first, the last, and every third between."""
    root = tmp_path / "cache"
    fill(root)
    numbers = calls_of_a_sweep(root, call)
    assert numbers
    for number in sorted({*numbers[::3], numbers[-1]}):
        shutil.rmtree(root)
        fill(root)
        done = sweep(root, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        assert done.returncode != 0, number
        check(root)
        eviction.sweep(str(root), Limits(age=1), now=NOW)
        left = {group.name for group in inventory.take_inventory(str(root)).groups if group.kind is not Kind.RECORD}
        assert left == {key("a", "fresh"), key("f", "graph")}, number
        assert not any((root / ".safecache" / "trash").iterdir())
