"""`safecache doctor` over a cache that real compiles have filled, and with the real torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import SOURCE

pytestmark = pytest.mark.default_release


def findings(home, *arguments):
    """By code."""
    kept = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), "HOME": str(home.base), "TMPDIR": str(home.base)}
    command = [sys.executable, "-m", "safecache", "doctor", "--json", *arguments]
    done = subprocess.run(command, env=home.environment | kept, capture_output=True, text=True, timeout=120)
    assert done.stderr == "", done.stderr
    return {one["code"]: one for one in json.loads(done.stdout)["findings"]}


def test_cache_of_safecache_has_nothing_wrong_until_an_entry_is_damaged(warm):
    found = findings(warm)
    assert "none is refused" in found["entries"]["evidence"] and "are active" in found["hooks"]["evidence"]
    assert {one["severity"] for one in found.values()} <= {"ok", "info"}, found
    (path,) = warm.aot_entries
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = findings(warm, "--no-import")
    assert str(path) in found["damaged-entries"]["evidence"] and "entries" not in found
