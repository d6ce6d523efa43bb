"""Authenticity: what was not sealed for here, by a key that may, is refused, each for its own reason."""

from __future__ import annotations

import logging
import pickle
import time

import pytest
from helpers import key_cases
from helpers.key_cases import BOTH, HOUR, MAC, PRIVATE, PUBLIC
from helpers.sealed import PAYLOAD, verify
from helpers.signed import STRANGERS, judged, parts, sealed
from hypothesis import given
from hypothesis import strategies as st

from safecache.entries import saving
from safecache.places.refs import Ref
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.signing import keyring, seal, trust

# --- who may


@BOTH
def test_entry_of_a_trusted_key_is_taken(key):
    key_cases.put(key)
    assert judged(sealed(key)) is None


def test_holder_of_the_public_part_alone_verifies():
    key_cases.put(PUBLIC)
    assert judged(sealed(PRIVATE)) is None


def test_entry_without_a_tag_is_refused():
    key_cases.put(PUBLIC)
    assert judged(PAYLOAD) is Reason.UNSEALED


@BOTH
def test_entry_of_a_key_that_is_not_trusted_is_refused(key):
    key_cases.put(STRANGERS[key.algorithm])
    assert judged(sealed(key)) is Reason.UNKNOWN_KEY


@BOTH
def test_entry_by_another_secret_under_a_trusted_id_is_refused(key):
    key_cases.put(key)
    stranger = STRANGERS[key.algorithm]
    assert judged(sealed(stranger._replace(id=key.id))) is Reason.BAD_SEAL


@BOTH
@pytest.mark.parametrize(
    ("change", "reason"),
    [(key_cases.revoked, Reason.REVOKED_KEY), (key_cases.expired, Reason.EXPIRED_KEY)],
    ids=["revoked", "expired"],
)
@pytest.mark.parametrize("mode", ["signed", "private"])
def test_entry_of_a_key_that_is_revoked_or_expired_is_refused_whenever_it_was_sealed(
    key, change, reason, mode, settings
):
    settings(SAFECACHE_TRUST=mode)
    content = sealed(key)
    key_cases.put(change(key))
    found = trust.examine(content, Kind.AOT_ENTRY, "the key", None)
    assert found.reason is reason and key.id.hex() in found.evidence and found.remedy


@BOTH
def test_revocation_outlasts_expiry(key):
    key_cases.put(key_cases.revoked(key_cases.expired(key)))
    assert judged(sealed(key)) is Reason.REVOKED_KEY


@BOTH
def test_expiry_is_judged_at_the_moment_of_verification(key, monkeypatch):
    content, now = sealed(key), time.time()
    ends = key._replace(expires=now + HOUR)
    assert verify(content, keys=[ends]).reason is None
    monkeypatch.setattr(time, "time", lambda: now + HOUR)
    assert verify(content, keys=[ends]) == (Reason.EXPIRED_KEY, key.id, None)


# --- for what


@BOTH
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": Kind.FX_ENTRY}, Reason.OTHER_KIND),
        ({"cache_key": "another"}, Reason.OTHER_CACHE_KEY),
        ({"namespace": "staging"}, Reason.OTHER_NAMESPACE),
        ({"namespace": ""}, Reason.OTHER_NAMESPACE),
        ({"namespace": "default/"}, Reason.OTHER_NAMESPACE),
    ],
    ids=["kind", "cache-key", "namespace", "empty-namespace", "longer-namespace"],
)
def test_entry_that_was_moved_is_refused(key, change, reason):
    key_cases.put(key)
    assert judged(sealed(key, **change)) is reason


@BOTH
@pytest.mark.parametrize(
    ("patterns", "namespace", "allowed"),
    [
        (["*"], "prod/llm", True),
        (["prod/*"], "prod/llm", True),
        (["prod/*"], "prod/a/b", True),
        (["staging", "prod/llm"], "prod/llm", True),
        (["prod"], "prod/llm", False),
        (["Prod/*"], "prod/llm", False),
        (["staging/*"], "prod/llm", False),
        ([], "prod/llm", False),
    ],
)
def test_key_supplies_the_namespaces_of_its_patterns_alone(key, patterns, namespace, allowed, settings):
    settings(SAFECACHE_NAMESPACE=namespace)
    key_cases.put(key, namespaces=patterns)
    assert judged(sealed(key, namespace=namespace)) is (None if allowed else Reason.KEY_NOT_ALLOWED)


def test_entries_are_saved_for_the_namespace_of_the_settings(settings):
    settings(SAFECACHE_NAMESPACE="prod")
    content = saving._attach_seal(PAYLOAD, Ref(Kind.AOT_ENTRY, "the key"), {})
    assert judged(content) is None
    settings(SAFECACHE_NAMESPACE="staging")
    assert judged(content) is Reason.OTHER_NAMESPACE


# --- altered


@BOTH
def test_tag_of_every_shorter_length_is_refused(key):
    payload, body, tag, footer = parts(sealed(key), key)
    assert verify(b"".join((payload, body, tag, footer)), keys=[key]).reason is None
    for size in range(len(tag)):
        assert verify(b"".join((payload, body, tag[:size], footer)), keys=[key]).reason is not None, size


@BOTH
def test_footer_of_one_entry_on_the_body_of_another_is_refused(key):
    key_cases.put(key)
    payload, body, tag, footer = parts(sealed(key, cache_key="new key"), key)
    assert trust.examine(payload + body + tag + footer, Kind.AOT_ENTRY, "new key", None) is Count.VERIFIED
    _, _, other_tag, other_footer = parts(sealed(key), key)
    found = trust.examine(payload + body + other_tag + other_footer, Kind.AOT_ENTRY, "new key", None)
    assert found.reason is Reason.BAD_SEAL


@BOTH
def test_footer_of_another_payload_is_refused(key):
    _, body, tag, footer = parts(sealed(key, payload=bytes(len(PAYLOAD))), key)
    assert verify(PAYLOAD + body + tag + footer, keys=[key]).reason is Reason.DAMAGED


@pytest.mark.parametrize("bit", range(8))
def test_every_part_of_a_signed_entry_counts(bit):
    content = sealed(PRIVATE)
    for place in range(len(PAYLOAD), len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        assert verify(bytes(changed), keys=[PUBLIC]).reason is not None, place


@given(payload=st.binary(), cache_key=st.text(), namespace=st.text(), provenance=st.dictionaries(st.text(), st.text()))
def test_whatever_was_signed_verifies_with_the_public_part_and_keeps_its_payload(
    payload, cache_key, namespace, provenance
):
    content = seal.attach(payload, Kind.FX_ENTRY, cache_key, PRIVATE, provenance, namespace)
    assert verify(content, Kind.FX_ENTRY, cache_key, [PUBLIC], namespace) == (None, PRIVATE.id, provenance)
    assert seal.strip_unverified(content) == payload


def test_stock_torch_unpickles_a_signed_entry():
    assert pickle.loads(sealed(PRIVATE)) == pickle.loads(PAYLOAD)


# --- where the library is missing


def test_entry_is_refused_with_the_command_that_installs_the_library(monkeypatch):
    key_cases.put(PUBLIC)
    content = sealed(PRIVATE)
    assert judged(content) is None
    key_cases.forget_cryptography(monkeypatch)
    found = trust.examine(content, Kind.AOT_ENTRY, "the key", None)
    assert found.reason is Reason.UNKNOWN_KEY and "pip install 'safecache[sign]'" in found.evidence


def test_mac_keys_work_without_the_library(monkeypatch, caplog):
    key_cases.put(PUBLIC)
    key_cases.put(MAC)
    content = sealed(PRIVATE)
    key_cases.forget_cryptography(monkeypatch)
    assert judged(sealed(MAC)) is None
    assert judged(content) is Reason.UNKNOWN_KEY
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "pip install 'safecache[sign]'" in caplog.text and PUBLIC.id.hex() in caplog.text
    assert keyring.current().signing is not None


def test_revocation_holds_without_the_library(monkeypatch):
    key_cases.put(key_cases.revoked(PRIVATE))
    content = sealed(PRIVATE)
    key_cases.forget_cryptography(monkeypatch)
    assert judged(content) is Reason.REVOKED_KEY
