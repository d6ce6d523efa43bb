"""The end of a sealed entry tells who sealed it and as what, and nothing of the bytes before it."""

from __future__ import annotations

import pytest
from helpers.sealed import ENTRY, KEY, PAYLOAD, PROVENANCE, verify
from hypothesis import given
from hypothesis import strategies as st

from safecache.fs import opening
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import seal
from safecache.signing.keys import Key

FIND = {KEY.id: KEY}.get


def inspect(content, most=4096, kind=Kind.AOT_ENTRY, cache_key="the key", namespace="default", find=FIND):
    return seal.inspect(content[-most:], len(content), kind, cache_key, find, namespace)


def test_end_of_an_entry_tells_its_signer_and_build():
    large = seal.attach(b"x" * 100_000, Kind.AOT_ENTRY, "the key", KEY, PROVENANCE)
    assert inspect(large) == inspect(large, len(large)) == (None, KEY.id, PROVENANCE)


def test_payload_is_not_looked_at():
    damaged = b"x" + ENTRY[1:]
    assert inspect(damaged).reason is None and verify(damaged).reason is Reason.DAMAGED


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"kind": Kind.FX_ENTRY}, Reason.OTHER_KIND),
        ({"cache_key": "another"}, Reason.OTHER_CACHE_KEY),
        ({"namespace": "prod"}, Reason.OTHER_NAMESPACE),
        ({"find": {}.get}, Reason.UNKNOWN_KEY),
        ({"find": {KEY.id: KEY._replace(revoked=1.0)}.get}, Reason.REVOKED_KEY),
        ({"find": {KEY.id: Key(KEY.id, b"o" * 32)}.get}, Reason.BAD_SEAL),
    ],
    ids=lambda value: value.value if isinstance(value, Reason) else "",
)
def test_seal_that_is_not_for_here_is_told(changed, reason):
    assert inspect(ENTRY, **changed).reason is reason


def test_end_that_leaves_out_part_of_the_seal_tells_nothing():
    footer_and_tag = 62 + 32
    verdict = inspect(ENTRY, footer_and_tag + 10)
    assert (verdict.reason, verdict.provenance) == (Reason.UNKNOWN_FORMAT, None)


@given(st.binary(max_size=300), st.integers(0, len(ENTRY)), st.integers(0, 7), st.integers(0, len(ENTRY) + 300))
def test_nothing_counts_as_sealed_that_is_not_but_for_its_payload(before, place, bit, most):
    content = bytearray(ENTRY)
    if place < len(content):
        content[place] ^= 1 << bit
    content = before + bytes(content)
    found, whole = inspect(content, most or 1), verify(content)
    in_payload = not before and place < len(PAYLOAD)
    assert found.reason is not None or whole.reason is None or in_payload
    assert whole.reason is not None or found.reason in (None, Reason.UNKNOWN_FORMAT, Reason.UNSEALED)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 5000])
def test_end_of_a_file_is_read_with_its_size(tmp_path, size):
    content = bytes(range(256)) * 20
    (tmp_path / "file").write_bytes(content[:size])
    assert opening.read_end(str(tmp_path / "file"), lambda status: None, 10) == (content[:size][-10:], size)
