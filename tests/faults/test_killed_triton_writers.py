"""A writer of Triton's cache that is killed at whatever system call leaves a whole group or none, and no file that stays.

The calls of one file are those of the store, which test_killed_writers.py counts: here it is which file comes when.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import SOURCE

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.default_release,
    pytest.mark.timeout(1800),  # some hundred processes, on a machine that may be busy
]

NAMES = ("k.cubin", "k.json")
START = "/where-it-starts"
WRITE = f"""
import json, os, sys
from safecache.code import triton_files
directory, version = sys.argv[1:]
os.path.exists({START!r})
for name in {NAMES!r}:
    triton_files.put(directory, name, version.encode() * 3000)
listed = {{name: os.path.join(directory, name) for name in {NAMES!r}}}
triton_files.put(directory, "__grp__k.json", json.dumps({{"child_paths": listed}}).encode())
"""
READ = """
import json, sys
from safecache.reporting import events; from safecache.code import triton_files
group = triton_files.get_group(sys.argv[1], "k.json")
versions = group and [open(path).read()[:3] for path in group.values()]
print(json.dumps([versions, events.counters().get("quarantined", 0)]))
"""
CALLS = ["mkdirat", "openat", "openat2", "write", "fsync", "renameat"]


@pytest.fixture
def process(tmp_path):
    def run(code, *arguments, strace=()):
        trace = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), *strace] if strace else []
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
        environment |= {"SAFECACHE_FSYNC": "always", "PYTHONHASHSEED": "0", "XDG_CONFIG_HOME": str(tmp_path)}
        command = [*trace, sys.executable, "-S", "-c", code, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def numbers(trace, call):
    """Which of these calls, counted from the first of the process, come after the start."""
    count, started = 0, []
    has_started = False
    for line in trace.read_text().splitlines():
        has_started = has_started or START in line
        if f" {call}(" in line:
            count += 1
            started += [count] * has_started
    return started


@pytest.mark.parametrize(
    ("call", "there"),
    [*((call, True) for call in CALLS), ("mkdirat", False), ("renameat", False)],
    ids=lambda value: {True: "replaced", False: "first"}.get(value, value),
)
def test_writer_that_is_killed_leaves_a_whole_group_or_none(tmp_path, process, call, there):
    root, template = tmp_path / "cache", tmp_path / "template"
    directory = root / "KEY"

    def prepare():
        shutil.rmtree(root, ignore_errors=True)
        if there:
            shutil.copytree(template, root)

    assert process(WRITE, directory, "old").returncode == 0  # and the key is made
    root.rename(template)
    prepare()
    # For the first time: what it imports is compiled then, which takes calls too.
    assert process(WRITE, directory, "new").returncode == 0
    prepare()
    trace = ("-e", f"trace={call},newfstatat,stat")
    assert process(WRITE, directory, "new", strace=trace).returncode == 0
    found = numbers(tmp_path / "trace", call)
    assert found or there, call
    for number in found:
        prepare()
        kill = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        assert process(WRITE, directory, "new", strace=kill).returncode != 0
        found, quarantined = json.loads(process(READ, directory).stdout)
        whole = [["old"] * len(NAMES), ["new"] * len(NAMES)] if there else [["new"] * len(NAMES)]
        assert found is None or found in whole, f"{call} {number}"
        assert not quarantined or there, f"{call} {number}"
        for path in root.rglob(".*.tmp"):
            os.utime(path, (time.time() - 7200,) * 2)
        assert process(WRITE + READ, directory, "new").stdout.startswith('[["new", "new"], '), f"{call} {number}"
        assert sorted(path.name for path in directory.iterdir()) == sorted([*NAMES, "__grp__k.json"])
