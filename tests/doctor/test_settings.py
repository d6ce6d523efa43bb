"""`safecache doctor` where variables are refused, misspelt, at odds, or turn a cache off, and where keys are a trap."""

from __future__ import annotations

import os
import time

import pytest
from conftest import SOURCE
from helpers.key_cases import PUBLIC

from safecache.signing import key_files
from safecache.signing.keys import Key

MAC = Key.make_mac(b"k" * 32)


def test_refused_setting_is_a_finding_and_keeps_nothing_else_from_being_looked_at(machine):
    report = machine.examine(env={"SAFECACHE_TRUST": "everybody", "SAFECACHE_STRICT": "1"})
    found = report.one("bad-setting", "error")
    assert "SAFECACHE_TRUST='everybody'" in found["evidence"] and found["remedy"] == "unset SAFECACHE_TRUST"
    assert report.code == 1 and {"versions", "behaviour", "user"} <= report.codes


def test_misspelt_setting_is_named_with_the_one_that_was_meant(machine):
    env = {
        "SAFECACHE_KEYFILE": "/run/key",
        "SAFECACHE_PURPLE_ELEPHANT": "1",
        "SafeCache_Strict": "1",
        "SAFECAHCE_SHARED": "1",
    }
    found = {
        one["evidence"].split()[0]: one["remedy"]
        for one in machine.examine(env=env).found("unknown-setting", "warning")
    }
    assert found == {
        "SAFECACHE_KEYFILE": "export SAFECACHE_KEY_FILE=/run/key; unset SAFECACHE_KEYFILE",
        "SAFECACHE_PURPLE_ELEPHANT": "unset SAFECACHE_PURPLE_ELEPHANT",
        "SAFECAHCE_SHARED": "export SAFECACHE_SHARED=1; unset SAFECAHCE_SHARED",
        "SafeCache_Strict": "export SAFECACHE_STRICT=1; unset SafeCache_Strict",
    }


def test_safecache_that_is_switched_off(machine):
    report = machine.examine(env={"SAFECACHE": "0", "SAFECACHE_STRICT": "1"})
    assert "SAFECACHE_STRICT" in report.one("switched-off", "warning")["evidence"]


def test_safecache_that_only_observes(machine):
    found = machine.examine(env={"SAFECACHE": "observe"}).one("observing", "warning")
    assert "safecache stats" in found["remedy"] and "observing" not in machine.examine().codes


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"SAFECACHE_SHARED": "1", "SAFECACHE_TRUST": "private"}, "SAFECACHE_TRUST=private has no effect"),
        ({"SAFECACHE_ISOLATE": "timeout=60"}, "timeout= of SAFECACHE_ISOLATE has no effect"),
        ({"SAFECACHE_TIERS": "{inductor}"}, "it is the cache itself"),
    ],
    ids=["private and shared", "limit without isolation", "layer is the cache"],
)
def test_setting_that_has_no_effect_beside_another(machine, env, named):
    env = {name: value.format(inductor=machine.inductor) for name, value in env.items()}
    assert named in machine.examine(env=env).one("settings-at-odds", "warning")["evidence"]


def test_local_level_beside_the_shared_cache_gains_nothing(machine):
    report = machine.examine(env={"SAFECACHE_TIERS": f"{machine.base}/local,cache"})
    assert str(machine.inductor) in report.one("local-level-gains-nothing", "warning")["evidence"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1"),
        ("TORCH_COMPILE_FORCE_DISABLE_CACHES", "false"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
        ("TORCHINDUCTOR_AUTOGRAD_CACHE", "0"),
        ("TRITON_ALWAYS_COMPILE", "1"),
        ("VLLM_DISABLE_COMPILE_CACHE", "1"),
    ],
)
def test_variable_that_turns_a_cache_off(machine, variable, value):
    found = machine.examine(env={variable: value}).one("cache-disabled", "warning")
    assert f"{variable}={value}" in found["evidence"] and found["remedy"] == f"unset {variable}"


def test_variable_that_leaves_the_caches_on(machine):
    env = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TRITON_ALWAYS_COMPILE": "0"}
    assert "cache-disabled" not in machine.examine(env=env).codes


def test_cache_directory_that_depends_on_where_a_process_is_started(machine):
    found = machine.examine(env={"TORCHINDUCTOR_CACHE_DIR": "no/where"}).one("relative-directory", "warning")
    assert found["remedy"] == "export TORCHINDUCTOR_CACHE_DIR=/no/where"


# Keys ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(machine):
    path = machine.base / "sealing.key"
    key_files.save(str(path), MAC)
    machine.environment["SAFECACHE_KEY_FILE"] = str(path)
    return path


def test_key_that_seals(machine, key_file):
    assert MAC.id.hex() in machine.examine().one("key", "ok")["evidence"]


def test_key_file_that_others_can_read(machine, key_file):
    key_file.chmod(0o644)
    found = machine.examine().one("no-key", "error")
    assert f"{key_file} has mode 0644" in found["evidence"] and "chmod 0640" in found["evidence"]


def test_key_file_that_is_not_mounted(machine, key_file):
    key_file.unlink()
    assert str(key_file) in machine.examine().one("no-key", "error")["evidence"]


def test_key_in_the_cache_itself(machine, key_file):
    inside = machine.inductor / "sealing.key"
    key_file.rename(inside)
    found = machine.examine(env={"SAFECACHE_KEY_FILE": inside}).one("key-beside-cache", "warning")
    assert str(inside) in found["evidence"]


def test_key_of_a_reader_seals_nothing_on_purpose(machine, key_file):
    key_file.unlink()
    key_files.save(str(key_file), PUBLIC)
    assert "only the public part" in machine.examine().one("seals-nothing", "info")["evidence"]


@pytest.fixture
def keyring(machine, key_file):
    ring = machine.home / ".config" / "safecache" / "keys"
    ring.mkdir(parents=True, mode=0o700)
    return ring


def test_key_that_expires_soon(machine, keyring):
    key = MAC._replace(expires=time.time() + 3 * 86400, name="farm")
    key_files.save(str(keyring / f"{key.id.hex()}.json"), key)
    found = machine.examine().one("key-expires-soon", "warning")
    assert f"{key.id.hex()} farm" in found["evidence"] and "safecache sign" in found["remedy"]


def test_key_that_needs_a_library_which_is_missing(machine, keyring, monkeypatch):
    key_files.save(str(keyring / f"{PUBLIC.id.hex()}.json"), PUBLIC)
    assert "no-cryptography" not in machine.examine().codes
    broken = machine.base / "site" / "cryptography"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no cryptography')")
    report = machine.examine(
        within=["env"], env={"PYTHONPATH": f"{broken.parent}:{SOURCE}", "PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert report.one("no-cryptography", "error")["remedy"] == "pip install 'safecache[sign]'"


def test_key_that_has_expired(machine, keyring):
    key = MAC._replace(expires=time.time() - 60)
    key_files.save(str(keyring / f"{key.id.hex()}.json"), key)
    assert "has expired" in machine.examine().one("no-key", "error")["evidence"]


def test_file_of_the_keyring_that_is_no_key(machine, keyring):
    (keyring / f"{'0' * 16}.json").write_text("{}")
    report = machine.examine()
    assert "0000000000000000.json" in report.one("key-refused", "warning")["evidence"]
    assert "key" in report.codes


def test_keyring_that_others_can_write_to(machine, keyring):
    keyring.chmod(0o777)
    assert f"{keyring} has mode 0777" in machine.examine().one("no-key", "error")["evidence"]


def test_examining_makes_no_key(machine):
    machine.examine()
    assert os.listdir(machine.home) == []
