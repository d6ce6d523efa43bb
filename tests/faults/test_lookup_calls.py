"""Counting what a lookup comes to makes no system call on the way of a hit, but for the first, which starts a thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.default_release,
]
START, END = "/where-it-starts", "/where-it-ends"
COMMON = """
import contextlib, json, os, pickle, sys
from safecache.settings import config; from safecache.entries import loading, saving, searches; from safecache.built_code import triton_files
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
root = config.cache_directory()
entries, kernel = root + "/aotautograd/akey", root + "/triton/0/KEY"
"""
MAKE = """
saving.write_entry(Ref(Kind.AOT_ENTRY, "akey", root), saving.seal_payload(pickle.dumps([7]), Kind.AOT_ENTRY, "akey"))
triton_files.put(kernel, "k.cubin", b"cubin")
triton_files.put(kernel, "__grp__k.json", json.dumps({"child_paths": {"k.cubin": kernel + "/k.cubin"}}).encode())
"""
FIND = """
def find(count):
    with searches.track_lookup(Ref(Kind.AOT_ENTRY), lambda: "model") if count else contextlib.nullcontext() as search:
        source = loading.Source(Ref(Kind.AOT_ENTRY, "akey", root), lambda entry: True)
        assert next(loading.look_up_entries(source, local=True, remote=None))[0] == [7]
        search and search.end_as_hit()
    with searches.track_lookup(Ref(Kind.KERNEL, "KEY", root), lambda: "k") if count else contextlib.nullcontext() as search:
        assert triton_files.get_group(kernel, "k.json") == {"k.cubin": kernel + "/k.cubin"}
        search and search.end_as_hit()
from safecache import history
history.observe()
history._PAUSE = 3600.0
find(COUNT)
os.path.exists("/where-it-starts")
find(COUNT)
os.path.exists("/where-it-ends")
"""


@pytest.fixture
def process(tmp_path):
    def run(code, strace=()):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
        environment |= {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONHASHSEED": "0", "SAFECACHE": "0"}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*strace, sys.executable, "-S", "-c", COMMON + code], env=environment, stderr=-1, text=True
        )
        assert done.returncode == 0 and not done.stderr, done

    return run


def calls(process, tmp_path, count):
    """Those between the marks, by name, and the lines of those after them."""
    trace = tmp_path / "trace"
    process(FIND.replace("COUNT", str(count)), strace=("strace", "-qq", "-s", "4096", "-o", str(trace)))
    during, after = trace.read_text().split(START)[-1].split(END)  # the command line has both, too
    return [line.split("(")[0] for line in during.splitlines()[1:-1]], after.splitlines()[1:]


def test_hit_that_is_counted_makes_the_system_calls_of_one_that_is_not(tmp_path, process):
    process(MAKE)
    plain, plain_end = calls(process, tmp_path, False)
    counted, end = calls(process, tmp_path, True)
    allocating = {"brk", "mmap", "munmap"}
    assert [call for call in counted if call not in allocating] == [call for call in plain if call not in allocating]
    assert len(plain) > 10
    assert [line for line in plain_end if "journal" in line] == []
    assert len([line for line in end if line.startswith("write(") and "aot hit" in line]) == 1
    assert len([line for line in end if line.startswith("openat") and ".jsonl" in line]) == 1
