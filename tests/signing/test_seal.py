"""A seal holds for exactly the payload, kind, cache key and key that it was made with, and for no other."""

from __future__ import annotations

import pickle

import pytest
from helpers.sealed import ENTRY, KEY, PAYLOAD, PROVENANCE, verify
from hypothesis import given
from hypothesis import strategies as st

from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keys, seal
from safecache.signing.keyring import Key

OTHER_KEY = Key.derive(b"o" * 32)
# Sealed by safecache 0.1.0.
GOLDEN_KEY = Key.derive(b"a key file of 32 bytes or more...")
GOLDEN = bytes.fromhex(
    "8004892e7b226b6579223a2261206361636865206b6579222c226b696e64223a2266785f6772617068222c226e616d657370616365223a22"
    "64656661756c74222c2270726f76656e616e6365223a7b22746f726368223a22322e3131227d7d8c9085241a71a89a87285d79610ebac106"
    "45db2079021082765dd0d08df58a5024a5341c9a6e30357187cbeaebee0a02714ee3b3d6cead951a613e96ffb746dce4110e2fd2aabc5104"
    "000000000000005b0000000102935341464543410a"
)
GOLDEN_SIGNATURE_KEY = Key.make_ed25519(keys.derive_public(bytes(range(32))), bytes(range(32)))
GOLDEN_SIGNED = bytes.fromhex(
    "8004892e7b226b6579223a2261206361636865206b6579222c226b696e64223a2266785f6772617068222c226e616d657370616365223a22"
    "70726f64222c2270726f76656e616e6365223a7b22746f726368223a22322e3131227d7dc66db01c1511d6cc6c50313378c44dec7d472189"
    "a8cad441d02389f3657d65d4a55135045ff12b61ef5ec0e8c32d547eca67d3416440ffaa5a93abca4ef6160724a5341c9a6e30357187cbea"
    "ebee0a02714ee3b3d6cead951a613e96ffb746dcd53816ad516fef2a0400000000000000580000000202935341464543410a"
)
# Sealed, with the same key, in format 1, which was never released and knew no namespaces.
FORMAT_1 = bytes.fromhex(
    "8004892e7b226b6579223a2261206361636865206b6579222c226b696e64223a2266785f6772617068222c2270726f76656e616e6365223a"
    "7b22746f726368223a22322e3131227d7d392225647db11a710b2653a273a6475764c78d447c109280671096320a47ee3c24a5341c9a6e30"
    "357187cbeaebee0a02714ee3b3d6cead951a613e96ffb746dce4110e2fd2aabc510400000000000000450000000101935341464543410a"
)


@given(
    payload=st.binary(),
    kind=st.sampled_from(Kind),
    cache_key=st.text(),
    material=st.binary(),
    provenance=st.dictionaries(st.text(), st.text()),
)
def test_whatever_was_sealed_verifies_and_keeps_its_payload(payload, kind, cache_key, material, provenance):
    key = Key.derive(material)
    content = seal.attach(payload, kind, cache_key, key, provenance)
    assert verify(content, kind, cache_key, [key]) == (None, key.id, provenance)
    assert seal.strip_unverified(content) == payload
    assert content.startswith(payload)


def test_same_input_gives_the_same_bytes():
    backwards = dict(reversed(PROVENANCE.items()))
    assert seal.attach(PAYLOAD, Kind.AOT_ENTRY, "the key", KEY, backwards) == ENTRY


def test_entry_sealed_by_the_first_release_still_verifies():
    verdict = verify(GOLDEN, Kind.FX_ENTRY, "a cache key", [GOLDEN_KEY])
    assert verdict == (None, GOLDEN_KEY.id, {"torch": "2.11"})
    assert seal.attach(b"\x80\x04\x89.", Kind.FX_ENTRY, "a cache key", GOLDEN_KEY, {"torch": "2.11"}) == GOLDEN


def test_entry_signed_by_the_first_release_still_verifies():
    key = GOLDEN_SIGNATURE_KEY
    verdict = verify(GOLDEN_SIGNED, Kind.FX_ENTRY, "a cache key", [key.extract_public()], namespace="prod")
    assert verdict == (None, key.id, {"torch": "2.11"})
    signed = seal.attach(b"\x80\x04\x89.", Kind.FX_ENTRY, "a cache key", key, {"torch": "2.11"}, "prod")
    assert signed == GOLDEN_SIGNED


def test_entry_of_the_format_without_namespaces_is_refused():
    assert verify(FORMAT_1, Kind.FX_ENTRY, "a cache key", [GOLDEN_KEY]) == (Reason.UNKNOWN_FORMAT, None, None)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1), ids="protocol-{}".format)
def test_stock_torch_unpickles_a_sealed_entry(protocol):
    value = {"graph": [1, 2.5, "text", b"bytes"]}
    content = seal.attach(pickle.dumps(value, protocol), Kind.FX_ENTRY, "a", KEY, PROVENANCE)
    assert pickle.loads(content) == value


def test_entry_of_another_cache_key_is_refused_and_says_its_provenance():
    assert verify(ENTRY, cache_key="the kez") == (Reason.OTHER_CACHE_KEY, KEY.id, PROVENANCE)


def test_entry_of_another_kind_is_refused_and_says_its_provenance():
    assert verify(ENTRY, kind=Kind.FX_ENTRY) == (Reason.OTHER_KIND, KEY.id, PROVENANCE)


def test_entry_of_another_key_is_refused_and_says_whose():
    assert verify(ENTRY, keys=[OTHER_KEY]) == (Reason.UNKNOWN_KEY, KEY.id, None)


def test_payload_of_a_trailer_that_does_not_fit_is_the_whole_content():
    assert seal.strip_unverified(ENTRY[1:]) == ENTRY[1:]
    assert seal.strip_unverified(PAYLOAD) == PAYLOAD
