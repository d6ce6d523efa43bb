"""A pack from one host on another, on a real GPU: other paths, another user, another home; every lookup a hit.

One run takes two minutes on an H200, most of it the compile.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE, isolated_environment
from test_entries_with_kernels import CODE

torch = pytest.importorskip("torch")
pytest.importorskip("zstandard")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(900),
]
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class Host:
    """A home with caches of its own; ``like``: with the keys of that one."""

    def __init__(self, base, like=None):
        self.base = base
        base.mkdir()
        if like is not None:
            shutil.copytree(like.base / "config", base / "config")
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        own = {"PYTHONPATH": path, "HOME": str(base / "home"), "TMPDIR": str(base / "tmp")}
        (base / "tmp").mkdir()
        self.environment = os.environ | isolated_environment(base) | own

    def run(self, *command, within=(), code=0, **env):
        done = subprocess.run(
            [*within, sys.executable, *map(str, command)],
            env=self.environment | env,
            text=True,
            capture_output=True,
            timeout=280,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def step(self, **how):
        done = self.run("-c", CODE, **how)
        print(done.stdout, done.stderr)
        return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}

    def say(self, *words, **how):
        return self.run("-m", "safecache", *words, **how).stdout


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("hosts") / "first")
    assert host.step()["hits"] == [0, 0]
    host.warm = host.step(SAFECACHE_MUST_HIT="1")
    assert host.warm["hits"] == [1, 2]
    host.pack = host.base / "model.safecache"
    print(host.say("pack", "-o", host.pack), host.pack.stat().st_size)
    return host


def is_warm(said):
    missed = {name: number for name, number in said["stats"].items() if "miss" in name or "refused" in name}
    return said["hits"] == [1, 2] and not missed and "saved" not in said["stats"]


def test_another_host_hits_all_of_it(first, tmp_path):
    below = Host(tmp_path / "below", first)
    said = below.step(SAFECACHE_TIERS=str(first.pack), SAFECACHE_MUST_HIT="1")
    assert is_warm(said) and said["stats"]["taken from a pack"] > 3, said
    print(json.dumps({"warm": first.warm["seconds"], "with a pack": said["seconds"]}))
    again = below.step(SAFECACHE_MUST_HIT="1")
    assert is_warm(again) and "taken from a pack" not in again["stats"], again


def test_another_user_hits_what_was_unpacked(first, tmp_path):
    other = Host(tmp_path / "unpacked", first)
    assert first.pack.name in other.say("unpack", first.pack)
    within = ()
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "65534:65534", other.base], check=True)
        for above in list(other.base.parents)[:-1]:
            above.chmod(above.stat().st_mode | 0o055)
        within = NOBODY
    assert is_warm(other.step(SAFECACHE_MUST_HIT="1", within=within))


def test_cubin_that_was_changed_in_a_pack_is_compiled_anew(first, tmp_path):
    """With the numbers that the model gives uncompiled: the workload compares them."""
    from safecache.packs import archive

    changed = tmp_path / "changed.safecache"
    content = bytearray(first.pack.read_bytes())
    size = len(content)
    for place in range(size // 2, size - len(archive.make_last_frame()), 499):
        content[place] ^= 4
    changed.write_bytes(content)
    said = Host(tmp_path / "other", first).step(SAFECACHE_TIERS=str(changed))
    assert "is not what was packed" in said["stderr"], said


def test_preflight_says_that_it_hits(first, tmp_path):
    assert Host(tmp_path / "target", first).say("preflight", first.pack)
