"""`sign` seals again what verifies already, and `verify` says what a load would take; neither unpickles anything."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest
from conftest import SOURCE
from helpers import key_cases
from helpers.key_cases import BOTH, MAC, PRIVATE, PUBLIC, put

from safecache.places import layout
from safecache.reporting.kinds import Kind
from safecache.signing import key_files, keyring, seal
from safecache.signing.keys import Key

OTHER = Key.derive(b"o" * 32)
PAYLOAD = pickle.dumps({"graph": [1, 2, 3]})


@pytest.fixture
def cache(tmp_path):
    root = tmp_path / "cache"

    def put(content, kind=Kind.AOT_ENTRY, folder="aotautograd/akey"):
        path = root / folder / layout.name_entry(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    root.mkdir()
    put.root = root
    return put


def sealed(key, kind=Kind.AOT_ENTRY, cache_key="akey", namespace="default"):
    return seal.attach(PAYLOAD, kind, cache_key, key, {"python": "3.11"}, namespace)


@BOTH
def test_entries_of_a_trusted_key_are_signed_with_ours_and_the_others_left(run, cache, key):
    put(key)
    old = cache(sealed(key))
    fx = cache(sealed(key, Kind.FX_ENTRY, "fkey"), folder="fxgraph/fk/fkey")
    unsealed, stranger = cache(PAYLOAD), cache(sealed(OTHER))
    moved = cache(sealed(key, cache_key="bkey"))
    said = run("sign", cache.root, "--json")
    report = json.loads(said.out)
    assert said.code == 1 and (report["sealed"], report["already_sealed"]) == (2, 0)
    reasons = {path: reason.split(":")[0] for path, reason in report["skipped"]}
    assert reasons == {str(unsealed): "unsealed", str(stranger): "unknown key", str(moved): "other cache key"}
    assert not old.exists() and not fx.exists()
    own = keyring.current().signing
    signed = [path for path in cache.root.rglob("*") if path.is_file() and str(path) not in reasons]
    for path in signed:
        place = layout.locate(str(path))
        verdict = seal.verify(path.read_bytes(), place.kind, place.cache_key, {own.id: own}.get)
        assert verdict == (None, own.id, {"python": "3.11", "countersigned": key.id.hex()})
    assert len(signed) == 2
    assert json.loads(run("sign", *signed, "--json").out) == {"sealed": 0, "already_sealed": 2, "skipped": []}


@pytest.mark.parametrize(
    ("change", "reason"),
    [(key_cases.revoked, "revoked key"), (key_cases.expired, "expired key")],
    ids=["revoked", "expired"],
)
@pytest.mark.parametrize("command", ["sign", "adopt"])
def test_entry_of_a_key_that_is_revoked_or_expired_is_not_sealed_again(run, cache, command, change, reason):
    put(change(MAC))
    path = cache(sealed(MAC))
    said = run(command, cache.root)
    assert said.code == 1 and reason in said.out and MAC.id.hex() in said.out and path.exists()


def test_entry_that_is_signed_again_before_its_key_expires_stays_good(run, cache):
    put(MAC)
    cache(sealed(MAC))
    assert run("sign", cache.root).code == 0
    put(key_cases.expired(MAC))
    assert run("verify", cache.root).code == 0


@pytest.mark.parametrize("command", ["sign", "adopt"])
def test_entry_of_another_namespace_is_not_sealed_again(run, cache, command):
    path = cache(sealed(keyring.current().signing, namespace="prod"))
    assert "other namespace" in run(command, cache.root).out and path.exists()


def test_adopted_entries_are_of_the_namespace_of_the_settings(run, cache, settings):
    settings(SAFECACHE_NAMESPACE="prod")
    cache(PAYLOAD)
    assert run("adopt", cache.root).code == 0 and run("verify", cache.root).code == 0
    assert run("adopt", cache.root).lines == ["0 files sealed, 1 was sealed already."]
    settings(SAFECACHE_NAMESPACE="test")
    assert run("verify", cache.root).code == 1


def test_nothing_is_signed_without_a_key_that_can(run, cache, settings, tmp_path):
    key_files.save(str(tmp_path / "public"), PUBLIC)
    settings(SAFECACHE_KEY_FILE=tmp_path / "public")
    path = cache(sealed(PRIVATE))
    assert run("verify", cache.root).code == 0
    said = run("sign", path)
    assert said.code == 1 and "only the public part" in said.err and path.exists()


def test_verify_counts_outcomes_and_lists_what_is_refused(run, cache):
    put(PUBLIC)
    cache(sealed(PRIVATE))
    cache(sealed(keyring.current().signing))
    refused = cache(sealed(OTHER))
    damaged = cache(b"x")
    damaged.write_bytes(b"y")
    before = {path: path.read_bytes() for path in cache.root.rglob("*") if path.is_file()}
    said = run("verify", cache.root, "--json")
    report = json.loads(said.out)
    assert said.code == 1 and report["entries"] == 4
    assert report["outcomes"] == {"verified": 2, "unknown key": 1, "damaged": 1}
    assert {each["path"]: each["reason"] for each in report["refused"]} == {
        str(refused): "unknown key",
        str(damaged): "damaged",
    }
    plain = run("verify", cache.root)
    assert (
        plain.lines[0] == "4 entries, 0 files of code, 1 damaged, 1 unknown key, 2 verified" and len(plain.lines) == 3
    )
    assert {path: path.read_bytes() for path in cache.root.rglob("*") if path.is_file()} == before


def test_verify_of_single_entries_judges_those_alone(run, cache):
    good, bad = cache(sealed(keyring.current().signing)), cache(PAYLOAD)
    assert run("verify", good).code == 0 and run("verify", bad).code == 1
    assert run("verify", good, bad).lines[0] == "2 entries, 0 files of code, 1 unsealed, 1 verified"


def test_verify_unpickles_nothing(run, cache, tmp_path):
    class Hostile:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    hostile = pickle.dumps(Hostile())
    cache(hostile)
    cache(seal.attach(hostile, Kind.AOT_ENTRY, "akey", keyring.current().signing, {}))
    assert run("verify", cache.root).lines[0] == "2 entries, 0 files of code, 1 unsealed, 1 verified"
    assert not (tmp_path / "ran").exists()


def test_verify_says_what_private_trust_accepts(run, cache, settings):
    cache(PAYLOAD)
    settings(SAFECACHE_TRUST="private")
    said = run("verify", cache.root)
    assert said.code == 0 and said.lines == ["1 entry, 0 files of code, 1 accepted as private"]


@pytest.mark.timeout(20, method="signal")  # would hang for ever
def test_verify_waits_for_no_fifo_and_follows_no_link(run, cache):
    path = cache(sealed(keyring.current().signing))
    os.mkfifo(path.parent / "fifo")
    (path.parent / "link").symlink_to(path)
    said = run("verify", cache.root)
    assert said.code == 1 and said.lines[0] == "3 entries, 0 files of code, 2 not a file, 1 verified"


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_path_that_is_not_there_or_in_no_cache_is_an_error_and_nothing_is_done(run, cache, tmp_path, command):
    put(MAC)
    path = cache(sealed(MAC))
    assert "No such file" in run(command, path, tmp_path / "absent").err
    (tmp_path / "elsewhere").write_bytes(path.read_bytes())
    said = run(command, path, tmp_path / "elsewhere")
    assert said.code == 1 and "is in no cache directory" in said.err and path.exists()


def test_farm_seals_and_a_server_with_the_public_part_verifies_until_it_is_revoked(run, cache, settings, tmp_path):
    private, public = tmp_path / "farm.json", tmp_path / "farm.pub.json"

    def command(home, *arguments, **variables):
        settings(XDG_CONFIG_HOME=tmp_path / home, **variables)
        keyring.renew()
        return run(*arguments)

    key_id = command("farm", "keygen", "--ed25519", "--out", private, "--public", public).out.split()[0]
    cache(PAYLOAD)
    assert command("farm", "adopt", cache.root, SAFECACHE_KEY_FILE=private).code == 0
    assert command("server", "verify", cache.root, SAFECACHE_KEY_FILE="").code == 1
    assert command("server", "trust", public).code == 0
    assert command("server", "verify", cache.root).out == "1 entry, 0 files of code, 1 verified\n"
    assert command("server", "revoke", key_id[:8]).code == 0
    refused = command("server", "verify", cache.root)
    assert refused.code == 1 and "[revoked key]" in refused.out
    (entry,) = (path for path in cache.root.rglob("*") if str(path) in refused.out and path.is_file())
    entry.unlink()
    assert command("server", "verify", cache.root).code == 0


def test_bad_namespace_exits_78_in_one_line():
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "SAFECACHE_NAMESPACE": "a b"}
    command = [sys.executable, "-m", "safecache", "keys"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 78 and done.stderr.count("\n") == 1 and "SAFECACHE_NAMESPACE='a b'" in done.stderr
