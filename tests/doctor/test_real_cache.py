"""`safecache doctor` over a cache that real compiles have filled, and with the real torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.places.layout import entry_name

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
    assert "nothing is wrong" in found["entries"]["evidence"] and "are active" in found["hooks"]["evidence"]
    assert {one["severity"] for one in found.values()} <= {"ok", "info"}, found
    (path,) = warm.aot_entries
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = findings(warm, "--no-import")
    assert str(path) in found["damaged-entries"]["evidence"] and "entries" not in found


def test_cache_of_stock_torch_can_be_adopted(home):
    assert home.run(stock=True).ok
    home.keys.mkdir(parents=True, mode=0o700)
    (home.keys / "sealing.key").write_text("k" * 64)
    (home.keys / "sealing.key").chmod(0o600)
    found = findings(home, "--no-import")["unsealed-entries"]
    assert found["remedy"].startswith(f"safecache adopt {home.cache}")
    assert all(path.name == entry_name(path.read_bytes()) for path in home.aot_entries)
    adopt = [sys.executable, "-m", "safecache", "adopt", str(home.cache)]
    assert (
        subprocess.run(adopt, env=home.environment | {"PYTHONPATH": str(SOURCE)}, capture_output=True).returncode == 0
    )
    assert "unsealed-entries" not in findings(home, "--no-import")
