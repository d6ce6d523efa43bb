"""The sealing key: whatever file it comes in, it seals only what this process would then take."""

from __future__ import annotations

import time

import pytest
from helpers import key_cases
from helpers.key_cases import BOTH, HOUR, MAC, PUBLIC, put

from safecache.entries import saving
from safecache.places.refs import Ref
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.signing import key_files, keyring, seal


@pytest.fixture
def sealing(settings, tmp_path):
    """Have this key seal."""

    def use(key):
        path = tmp_path / "sealing.json"
        key_files.replace(str(path), key)
        settings(SAFECACHE_KEY_FILE=path)
        keyring.renew()
        return path

    return use


@BOTH
def test_key_file_in_json_seals(key, sealing):
    sealing(key)
    ring = keyring.current()
    assert ring.signing == key and ring.find(key.id) == key
    content = saving._attach_seal(b"payload", Ref(Kind.FX_ENTRY, "k"), {})
    assert seal.verify(content, Kind.FX_ENTRY, "k", ring.find).reason is None


@BOTH
@pytest.mark.parametrize("where", ["key file", "keyring"])
@pytest.mark.parametrize(
    ("change", "message"),
    [(key_cases.revoked, "is revoked"), (key_cases.expired, "has expired")],
    ids=["revoked", "expired"],
)
def test_sealing_key_that_is_revoked_or_expired_seals_nothing(key, where, change, message, sealing):
    if where == "keyring":
        put(change(key))
    sealing(change(key) if where == "key file" else key)
    ring = keyring.current()
    assert ring.signing is None and ring.problem == f"the sealing key {key.id.hex()} {message}"
    assert saving._attach_seal(b"payload", Ref(Kind.FX_ENTRY, "k"), {}) == b"payload"
    assert ring.find(key.id).find_objection(time.time()) is not None


def test_own_key_that_was_revoked_without_its_secret_seals_nothing():
    own = keyring.current().signing
    put(key_cases.revoked(own._replace(secret=b"")))
    keyring.renew()
    ring = keyring.current()
    assert ring.signing is None and "is revoked" in ring.problem and ring.find(own.id).revoked


def test_sealing_key_whose_file_in_the_keyring_is_damaged_seals_nothing(sealing):
    """That file could be its revocation."""
    path = put(key_cases.revoked(MAC))
    path.write_bytes(path.read_bytes()[:-20])
    sealing(MAC)
    ring = keyring.current()
    assert ring.signing is None and str(path) in ring.problem and ring.find(MAC.id) is None


def test_sealing_key_that_expires_while_the_process_runs_stops_sealing(sealing, monkeypatch):
    now = time.time()
    sealing(MAC._replace(expires=float(int(now + HOUR))))
    assert keyring.current().signing is not None
    monkeypatch.setattr(time, "time", lambda: now + HOUR)
    assert keyring.current().signing is None and "has expired" in keyring.current().problem


@pytest.mark.parametrize(
    ("own", "listed", "both"),
    [
        (("*",), ("prod",), ("prod",)),
        (("prod",), ("*",), ("prod",)),
        (("prod", "test"), ("test", "default"), ("test",)),
        (("prod",), ("test",), ()),
    ],
)
def test_sealing_key_is_held_to_what_both_of_its_files_say(own, listed, both, sealing):
    put(MAC._replace(namespaces=listed, expires=4e9))
    sealing(MAC._replace(namespaces=own, expires=3e9))
    (key,) = keyring.current().trusted.values()
    assert key.namespaces == both and key.expires == 3e9


def test_sealing_key_that_may_not_supply_the_namespace_seals_nothing(sealing, settings):
    sealing(MAC._replace(namespaces=("prod/*",)))
    ring = keyring.current()
    assert ring.signing is None and "not allowed for SAFECACHE_NAMESPACE=default" in ring.problem
    settings(SAFECACHE_NAMESPACE="prod/llm")
    assert keyring.current().signing is not None


@pytest.mark.parametrize("mode", [0o644, 0o604], ids="{:04o}".format)
@BOTH
def test_key_file_in_json_that_others_can_read_is_refused(key, mode, sealing):
    sealing(key).chmod(mode)
    assert keyring.current().signing is None and f"has mode {mode:04o}" in keyring.current().problem


# --- a process that holds the public part alone


def test_process_with_the_public_part_alone_reads_and_does_not_save(sealing, tmp_path, caplog):
    sealing(PUBLIC)
    ring = keyring.current()
    assert ring.signing is None and ring.find(PUBLIC.id) == PUBLIC
    content = saving._attach_seal(b"payload", Ref(Kind.FX_ENTRY, "k"), {})
    assert content == b"payload"
    for _ in range(2):
        saving.write_entry(Ref(Kind.FX_ENTRY, "k", str(tmp_path / "cache")), content)
    assert not (tmp_path / "cache").exists()
    (record,) = caplog.records
    assert f"SAFECACHE_KEY_FILE holds only the public part of key {PUBLIC.id.hex()}" in record.getMessage()
    assert "[no key]" in record.getMessage() and events.read_counters()["no key"] == 2
