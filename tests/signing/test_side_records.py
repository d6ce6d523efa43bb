"""What safecache notes beside a cache is believed only under a seal, of this subject, and where asked of this user."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safecache.reporting.kinds import Kind
from safecache.signing import keyring, keys, provenance, seal, side_records
from safecache.signing.keyring import Keyring

SUBJECT = "strike fxyz"


@pytest.fixture
def sealed(isolated):
    return side_records.seal_record(SUBJECT, {"at": 12.5, "why": "signal 11"})


def seal_as(payload, kind=Kind.SIDE_RECORD):
    return seal.attach(payload, kind, SUBJECT, keyring.current().signing, provenance.make_statement(kind), "")


def test_record_is_read_back(sealed):
    assert side_records.open_record(sealed, SUBJECT, own=True) == {"at": 12.5, "why": "signal 11"}


@pytest.mark.parametrize("own", [True, False])
def test_other_subject_is_refused(sealed, own):
    assert side_records.open_record(sealed, "strike other", own=own) is None


def test_entry_of_another_kind_is_refused(sealed):
    assert side_records.open_record(seal_as(b"{}", Kind.FX_ENTRY), SUBJECT, own=False) is None


@pytest.mark.parametrize("payload", [b"[1]", b"\xff", b"[" * 30_000, b"nul"], ids=["list", "bytes", "nested", "cut"])
def test_sealed_content_that_is_no_object_is_refused(isolated, payload):
    assert side_records.open_record(seal_as(payload), SUBJECT, own=True) is None


def test_too_large_record_is_refused(isolated):
    large = seal_as(json.dumps({"why": "x" * side_records.LARGEST}).encode())
    assert side_records.open_record(large, SUBJECT, own=True) is None


def test_bytes_without_a_seal_are_refused():
    @given(st.binary(max_size=400))
    def refuses(unverified):
        assert side_records.open_record(unverified, SUBJECT, own=False) is None

    refuses()


def test_any_flipped_byte_is_refused(sealed):
    for at in range(len(sealed)):
        flipped = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        assert side_records.open_record(flipped, SUBJECT, own=False) is None, at


def test_key_that_is_only_trusted_is_not_own(sealed, monkeypatch):
    theirs, mine = keyring.current().signing, keys.Key.derive(b"m" * 32)
    monkeypatch.setattr(keyring, "current", lambda tell=True: Keyring(mine, trusted={theirs.id: theirs}))
    assert side_records.open_record(sealed, SUBJECT, own=True) is None
    assert side_records.open_record(sealed, SUBJECT, own=False) is not None


def test_process_without_a_key_seals_nothing(isolated, monkeypatch):
    monkeypatch.setattr(keyring, "current", lambda tell=True: Keyring(None))
    assert side_records.seal_record(SUBJECT, {}) is None
