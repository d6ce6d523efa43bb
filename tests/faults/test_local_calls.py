"""A hit in a node-local tier makes the system calls of one without the setting, and none for the shared directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from conftest import SOURCE

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.default_release,
]
START, END = "/where-it-starts", "/where-it-ends"
COMMON = """
import json, os, pickle, sys
from safecache.settings import config; from safecache.built_code import library_builds, triton_files; from safecache.store import gate; from safecache.tiers import fallback; from safecache.entries import loading, saving; from safecache.store import directories; from safecache.store import entry_files
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
os.path.exists("/where-it-starts")
fallback.ensure_cache_directory(lambda: "nowhere")
root = config.cache_directory()
entries, library, kernel = root + "/aotautograd/akey", root + "/ab/cab.so", root + "/triton/0/KEY"
"""
MAKE = """
saving.write_entry(Ref(Kind.AOT_ENTRY, "akey", root), saving.seal_payload(pickle.dumps([7]), Kind.AOT_ENTRY, "akey"))
gate.attest_file(CodeFile(library, root), content=b"library")
entry_files.publish(library, b"library", root)
directories.propagate_file(CodeFile(library))
triton_files.put(kernel, "k.cubin", b"cubin")
triton_files.put(kernel, "__grp__k.json", json.dumps({"child_paths": {"k.cubin": kernel + "/k.cubin"}}).encode())
"""
FIND = """
source = loading.Source(Ref(Kind.AOT_ENTRY, "akey", root), lambda entry: True)
assert next(loading.look_up_entries(source, local=True, remote=None))[0] == [7]
assert gate.quarantine_unattested(CodeFile(library, root)) or library_builds._is_fetched(library, root)
os.makedirs(kernel, exist_ok=True)
assert triton_files.get_group(kernel, "k.json") == {"k.cubin": kernel + "/k.cubin"}
os.path.exists("/where-it-ends")
"""


@pytest.fixture
def process(tmp_path):
    def run(code, cache, local="", strace=()):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [SOURCE, *sys.path[1:]]))}
        environment |= {"XDG_CONFIG_HOME": str(tmp_path), "SAFECACHE_LOCAL": str(local), "PYTHONHASHSEED": "0"}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*strace, sys.executable, "-S", "-c", COMMON + code], env=environment, stderr=-1, text=True
        )
        assert done.returncode == 0 and not done.stderr, done
        return done

    return run


def calls(process, tmp_path, *where):
    """Those between the marks, by name, and the lines that tell of them."""
    trace = tmp_path / "trace"
    process(FIND, *where, strace=("strace", "-y", "-qq", "-e", "trace=%file,%desc", "-o", str(trace)))
    text = trace.read_text().split(START)[1].split(END)[0].splitlines()[1:-1]
    return [line.split("(")[0] for line in text if "mmap" not in line], text


def test_hit_in_the_local_level_costs_no_system_call_more_and_does_not_ask_the_shared_one(tmp_path, process):
    shared = tmp_path / "shared"
    process(MAKE, shared, tmp_path / "a")
    process(FIND, shared, tmp_path / "b")
    (level,) = (tmp_path / "b").glob("*/*")
    plain = tmp_path / "plain" / "as-deep" / "cache"
    shutil.copytree(level, plain)
    process(FIND, plain)
    expected, _ = calls(process, tmp_path, plain)
    found, lines = calls(process, tmp_path, shared, tmp_path / "b")
    assert len(found) > 10 and not Counter(found) - Counter(expected)
    assert [line for line in lines if f"{shared}/" in line or f'{shared}"' in line] == []


def test_nothing_is_read_twice_from_the_shared_level_but_the_list_of_a_kernel(tmp_path, process):
    shared = tmp_path / "shared"
    process(MAKE, shared, tmp_path / "a")
    _, lines = calls(process, tmp_path, shared, tmp_path / "b")
    # As strace says which file a descriptor is of.
    opened = [found[1] for line in lines if (found := re.match(rf"openat2?\(.* = \d+<({shared}/.*)>$", line))]
    twice = {path for path in opened if opened.count(path) > 1}
    (listing,) = shared.glob("triton/0/KEY/__grp__*")
    assert len(opened) > 5 and {os.path.basename(path) for path in twice if ".safecache" not in path} <= {listing.name}
    assert sum(".safecache" in path for path in twice) <= 1, "the list's record"
