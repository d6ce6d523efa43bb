"""A pack from one host on another, with other paths, another user and another home: what the first has compiled is hit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE, WARM, needs_root
from scenes import kernel_scenes

MUST_HIT = {"SAFECACHE_MUST_HIT": "1"}


def say(home, *arguments, code=0):
    """Run a command on that host."""
    environment = os.environ | home.environment | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "safecache", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def host(warm, new_home):
    """Another host: another home, with the keys of the first."""
    other = new_home()
    shutil.copytree(warm.keys, other.keys)
    yield other
    shutil.rmtree(other.base, ignore_errors=True)


@pytest.fixture
def pack(warm, tmp_path):
    path = tmp_path / "model.safecache"
    say(warm, "pack", warm.cache, "-o", path)
    return path


def test_another_host_hits_without_unpacking(pack, host):
    answer = host.run(env={"SAFECACHE_LOWER": str(pack), **MUST_HIT})
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer
    assert answer.stats["taken from a pack"] >= 3 and "saved" not in answer.stats, answer
    # It has all of it, verified, for the time without the pack.
    alone = host.run(env=MUST_HIT)
    assert alone.ok and alone.hits == WARM and not alone.warnings, alone


def test_another_host_hits_what_it_has_unpacked(pack, host):
    say(host, "unpack", pack)
    answer = host.run(env=MUST_HIT)
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer
    stock = host.run(stock=True)
    assert stock.ok and stock.hits == WARM, "stock torch reads it too"


def test_host_without_the_key_compiles_and_says_why(pack, new_home):
    stranger = new_home()
    answer = stranger.run(env={"SAFECACHE_LOWER": str(pack)})
    assert answer.ok and answer.hits == (0, 0), answer
    assert any(str(pack) in line and "key" in line for line in answer.warnings), answer
    strict = new_home().run(env={"SAFECACHE_LOWER": str(pack)}, strict=True)
    assert "EntryRefusedError" in strict.errors, strict


@needs_root
def test_another_user_with_a_pack_that_is_roots(pack, host):
    os.chmod(pack, 0o444)
    for directory in (pack.parent, *pack.parent.parents[:-1]):
        os.chmod(directory, directory.stat().st_mode | 0o055)
    subprocess.run(["chown", "-R", "65534:65534", host.base], check=True)
    answer = host.run(env={"SAFECACHE_LOWER": str(pack), **MUST_HIT}, user=(65534, 65534))
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer


@needs_root
def test_cache_that_cannot_be_written(pack, host):
    host.cache.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", host.cache], check=True)
    try:
        answer = host.run(env={"SAFECACHE_LOWER": str(pack), **MUST_HIT})
    finally:
        subprocess.run(["umount", "-l", host.cache], check=True)
    assert answer.ok and answer.hits == WARM and len(answer.warnings) == 1, answer


def test_damaged_pack_costs_no_more_than_a_compile(pack, host):
    content = bytearray(pack.read_bytes())
    for place in range(len(content) // 2, len(content), 997):
        content[place] ^= 1
    pack.write_bytes(content)
    answer = host.run(env={"SAFECACHE_LOWER": str(pack)})
    assert answer.ok and answer.warnings and all(str(pack) in line for line in answer.warnings), answer


def test_tritons_kernels(warm, host, tmp_path):
    pytest.importorskip("triton")
    cold = warm.run(kernel_scenes.compile_kernel)
    assert cold.ok and cold.result["compiled"], cold
    say(warm, "pack", "-o", tmp_path / "kernels.safecache")
    warm = host.run(kernel_scenes.compile_kernel, env={"SAFECACHE_LOWER": str(tmp_path / "kernels.safecache")})
    assert warm.ok and not warm.result["compiled"] and warm.result["cubin"] == cold.result["cubin"], warm
    assert not warm.warnings and all(str(host.base) in path for path in warm.result["files"]), warm


def test_two_hosts_caches_as_one(warm, host, new_home, tmp_path):
    """Each has compiled something: a third hits both."""
    pytest.importorskip("triton")
    cold = host.run(kernel_scenes.compile_kernel)
    assert cold.ok and cold.result["compiled"], cold
    one, two, both = (tmp_path / f"{name}.safecache" for name in ("one", "two", "both"))
    say(warm, "pack", "-o", one)
    say(host, "pack", "-o", two)
    say(host, "merge", one, two, "-o", both)
    assert json.loads(say(host, "diff", one, both, "--json", code=1))["differences"]
    third = new_home()
    shutil.copytree(warm.keys, third.keys)
    env = {"SAFECACHE_LOWER": str(both), **MUST_HIT}
    kernel, model = third.run(kernel_scenes.compile_kernel, env=env), third.run(env=env)
    assert kernel.ok and not kernel.result["compiled"] and model.ok and model.hits == WARM, (kernel, model)
