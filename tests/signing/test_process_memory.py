"""What the memory of a process holds of keys, as a checkpoint of it does: none of a process that has the public part alone."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.signing.keys import Key
from safecache.testing import isolated

PROGRAM = """
import sys
from safecache.signing import keyring
print(keyring.current().signing is not None, flush=True)
sys.stdin.read()
"""


def held(environment, *secrets):
    """Whether the process can seal, and which of these secrets its memory has, as they are or in hexadecimal."""
    line = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        seals = process.stdout.readline().strip() == "True"
        content = memory(process.pid)
        process.stdin.close()
        assert process.wait(30) == 0
    return seals, [secret in content or secret.hex().encode() in content for secret in secrets]


def memory(pid):
    parts = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as file:
        for line in maps:
            place, access, *_ = line.split()
            if access.startswith("rw"):
                start, end = (int(each, 16) for each in place.split("-"))
                file.seek(start)
                parts.append(file.read(end - start))
    return b"\n".join(parts)


@pytest.fixture
def environment(tmp_path):
    found = {name: text for name, text in os.environ.items() if not name.startswith("SAFECACHE")}
    return found | isolated(tmp_path) | {"PYTHONPATH": str(SOURCE), "HOME": str(tmp_path / "home")}


def test_process_that_seals_has_its_key_in_memory(environment, tmp_path):
    (tmp_path / "key").write_bytes(os.urandom(32))
    (tmp_path / "key").chmod(0o400)
    secret = Key.derive((tmp_path / "key").read_bytes()).secret
    found = held(environment | {"SAFECACHE_KEY_FILE": str(tmp_path / "key")}, secret, os.urandom(32))
    assert found == (True, [True, False])


def test_process_with_the_public_part_alone_has_no_key_in_memory(environment, tmp_path):
    """Not the farm's, and not the user's own, which lies where it would be found."""
    pytest.importorskip("cryptography")
    farm, public = tmp_path / "farm.json", tmp_path / "farm.pub.json"
    command = [sys.executable, "-m", "safecache", "keys", "new", "--ed25519", "--out", farm, "--public", public]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    seed = base64.b64decode(json.loads(farm.read_text())["private"])
    assert held(environment, seed) == (True, [False])
    (place,) = tmp_path.rglob("sealing.key")
    own = Key.derive(place.read_bytes().strip()).secret
    assert held(environment, seed, own) == (True, [False, True])
    assert held(environment | {"SAFECACHE_KEY_FILE": str(farm)}, seed, own) == (True, [True, False])
    assert held(environment | {"SAFECACHE_KEY_FILE": str(public)}, seed, own) == (False, [False, False])
