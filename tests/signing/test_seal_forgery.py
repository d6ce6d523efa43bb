"""Downgraded and confused: no tag of one format or algorithm passes for one of another."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from helpers.key_cases import BOTH, MAC, PRIVATE, PUBLIC
from helpers.sealed import PAYLOAD, verify
from helpers.signed import DOMAIN, parts, sealed

from safecache.errors import KeyringError
from safecache.reporting.kinds import Reason
from safecache.signing.keys import Key


@BOTH
def test_trailer_of_the_older_format_is_refused(key):
    """Made as format 1 was, by somebody who even has the key: without a namespace, under its own domain."""
    body = b'{"key":"the key","kind":"aot_autograd","provenance":{}}'
    _, _, _, footer = parts(sealed(key), key)
    old = footer[:48] + len(body).to_bytes(4, "little") + footer[52:53] + b"\x01" + footer[54:]
    content = PAYLOAD + body + key.make_tag(b"safecache seal 1\0" + old + body) + old
    assert verify(content, keys=[key]).reason is Reason.UNKNOWN_FORMAT
    # Nor is such a body under this format.
    new = old[:53] + b"\x02" + old[54:]
    content = PAYLOAD + body + key.make_tag(DOMAIN + new + body) + new
    assert verify(content, keys=[key]).reason is Reason.UNKNOWN_FORMAT
    content = PAYLOAD + body + key.make_tag(b"safecache seal 1\0" + new + body) + new
    assert verify(content, keys=[key]).reason is Reason.BAD_SEAL


def forged(key_id, algorithm, make_tag):
    """An entry that names ``key_id`` and ``algorithm``, whole and of the right sizes."""
    template = sealed(MAC)
    _, body, _, footer = parts(template, MAC)
    footer = footer[:32] + key_id + footer[40:52] + bytes([algorithm]) + footer[53:]
    return PAYLOAD + body + make_tag(DOMAIN + footer + body) + footer


def test_forging_as_these_tests_do_would_work_with_the_key():
    assert verify(forged(MAC.id, 1, MAC.make_tag), keys=[MAC]).reason is None
    assert verify(forged(PUBLIC.id, 2, PRIVATE.make_tag), keys=[PUBLIC]).reason is None


@pytest.mark.parametrize(
    "secret",
    [PUBLIC.public, PUBLIC.id, b"", hashlib.sha256(b"safecache key 1\0" + PUBLIC.public).digest()],
    ids=["public-key", "key-id", "nothing", "derived-from-public-key"],
)
@pytest.mark.parametrize("held", [PUBLIC, PRIVATE], ids=["public", "private"])
def test_mac_keyed_with_what_everybody_knows_of_a_signature_key_is_refused(secret, held):
    content = forged(PUBLIC.id, 1, lambda message: hmac.digest(secret, message, "sha256"))
    assert verify(content, keys=[held]).reason is Reason.BAD_SEAL


def test_mac_padded_to_the_size_of_a_signature_is_refused():
    content = forged(PUBLIC.id, 2, lambda message: hmac.digest(PUBLIC.public, message, "sha512"))
    assert verify(content, keys=[PUBLIC]).reason is Reason.BAD_SEAL


def test_tag_of_a_mac_key_that_says_it_is_a_signature_is_refused():
    content = forged(MAC.id, 2, lambda message: MAC.make_tag(message) * 2)
    assert verify(content, keys=[MAC]).reason is Reason.BAD_SEAL


def test_signature_by_another_key_under_the_id_of_a_mac_key_is_refused():
    content = forged(MAC.id, 2, PRIVATE.make_tag)
    assert verify(content, keys=[MAC]).reason is Reason.BAD_SEAL


def test_signature_key_whose_footer_says_mac_is_refused_even_with_a_good_signature_cut_short():
    content = forged(PUBLIC.id, 1, lambda message: PRIVATE.make_tag(message)[:32])
    assert verify(content, keys=[PUBLIC]).reason is Reason.BAD_SEAL


def test_mac_key_without_its_secret_verifies_nothing():
    """As it lies in the file of a revocation; with no secret, everybody would have it."""
    content = forged(MAC.id, 1, lambda message: hmac.digest(b"", message, "sha256"))
    assert verify(content, keys=[MAC._replace(secret=b"")]).reason is Reason.BAD_SEAL


@pytest.mark.parametrize("public", [b"", b"short", bytes(32), b"\xff" * 32, bytes(33)], ids=repr)
def test_bytes_that_are_no_public_key_verify_nothing_and_raise_nothing(public):
    key = PUBLIC._replace(public=public)
    assert verify(sealed(PRIVATE), keys=[key]).reason is Reason.BAD_SEAL


def test_ids_of_the_same_bytes_differ_by_algorithm():
    material = bytes(range(32))
    assert Key.make_mac(material).id != Key.make_ed25519(material).id


def test_public_part_cannot_seal():
    assert not PUBLIC.can_seal and PRIVATE.can_seal
    with pytest.raises(KeyringError, match=f"{PUBLIC.id.hex()} holds no secret"):
        sealed(PUBLIC)


def test_mac_key_has_no_public_part():
    with pytest.raises(KeyringError, match="no public part"):
        MAC.extract_public()


@pytest.mark.parametrize("key", [MAC, PUBLIC], ids=["mac", "ed25519"])
def test_algorithm_is_compared_before_the_tag(key, monkeypatch):
    monkeypatch.setattr(Key, "is_tag_valid", lambda *_: True)
    for algorithm in (1, 2):
        content = forged(key.id, algorithm, lambda _, size=32 * algorithm: bytes(size))
        own = algorithm == key.algorithm.number
        assert verify(content, keys=[key]).reason is (None if own else Reason.BAD_SEAL)
