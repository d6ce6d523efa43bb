"""A writer of Triton's cache that is killed at whatever system call leaves a whole group or none, and no file that stays.

The calls of one file are those of the store, which test_killed.py counts: here it is which file comes when.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from conftest import SOURCE
from helpers.fresh import forget_kernels
from helpers.in_process import isolated

import safecache
from safecache.built_code import triton_files
from safecache.fs import temporaries
from safecache.reporting import events

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.default_release,
]

NAMES = ["k.cubin", "k.json"]
START = "/where-it-starts"
# Of those that there are many of, every so many-th.
STEPS = {"mkdirat": 1, "openat": 8, "openat2": 1, "write": 1, "fsync": 5, "renameat": 1}


def write(directory, version, names):
    for name in names:
        triton_files.put(directory, name, version.encode() * 3000)
    listed = {name: os.path.join(directory, name) for name in names}
    triton_files.put(directory, "__grp__k.json", json.dumps({"child_paths": listed}).encode())


def read(directory):
    """As a process that has just been started: the version of each file of the group."""
    safecache.reset()
    forget_kernels()
    temporaries._reaped.reset()
    group = triton_files.get_group(str(directory), "k.json")
    return group and [Path(path).read_text()[:3] for path in group.values()]


def write_in_process(directory, version, strace=()):
    code = f"import json, os; from safecache.built_code import triton_files\n{inspect.getsource(write)}\n"
    code += f"os.path.exists({START!r}); write({str(directory)!r}, {version!r}, {NAMES!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
    environment |= {"SAFECACHE_FSYNC": "always", "PYTHONHASHSEED": "0"}
    return subprocess.run([*strace, sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)


def points(trace):
    """Calls that come after the start: each by its name, and its number among those of the whole process."""
    counts, found, started = Counter(), defaultdict(list), False
    for line in trace.read_text().splitlines():
        started = started or START in line
        call = line.split()[1].partition("(")[0]
        counts[call] += 1
        if started and call in STEPS:
            found[call].append(counts[call])
    return [(call, number) for call, all in found.items() for number in sorted({*all[:: STEPS[call]], all[-1]})]


@pytest.mark.parametrize("there", [True, False], ids=["replaced", "first"])
def test_writer_that_is_killed_leaves_a_whole_group_or_none(tmp_path, there):
    root, template, trace = tmp_path / "cache", tmp_path / "template", tmp_path / "trace"
    directory = root / "KEY"
    strace = ["strace", "-f", "-qq", "-o", str(trace), "-e"]

    def prepare():
        shutil.rmtree(root, ignore_errors=True)
        if there:
            shutil.copytree(template, root)

    # And the key is made, and what it imports is compiled, which takes calls too.
    assert write_in_process(directory, "old").returncode == 0
    root.rename(template)
    prepare()
    traced = [*strace, f"trace={','.join(STEPS)},newfstatat,stat"]
    assert write_in_process(directory, "new", traced).returncode == 0
    found = points(trace)
    # A new cache differs in its directories, and in what has a name for the first time.
    found = [(call, number) for call, number in found if there or call in ("mkdirat", "renameat")]
    assert {call for call, _ in found} == (STEPS.keys() - {"mkdirat"} if there else {"mkdirat", "renameat"})
    whole = [["old"] * len(NAMES), ["new"] * len(NAMES)] if there else [["new"] * len(NAMES)]
    for call, number in found:
        prepare()
        kill = [*strace, f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
        assert write_in_process(directory, "new", kill).returncode != 0
        versions = read(directory)
        assert versions is None or versions in whole, f"{call} {number}"
        assert there or not events.read_counters().get("quarantined"), f"{call} {number}"
        for path in root.rglob(".*.tmp"):
            os.utime(path, (time.time() - 7200,) * 2)
        write(str(directory), "new", NAMES)
        assert read(directory) == ["new"] * len(NAMES), f"{call} {number}"
        assert sorted(path.name for path in directory.iterdir()) == sorted([*NAMES, "__grp__k.json"])
