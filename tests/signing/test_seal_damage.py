"""Whatever happens to the bytes of a sealed entry, it is refused, and verifying raises nothing.

See tests/fuzz for more of that, over every kind of entry and both algorithms.
"""

from __future__ import annotations

import pytest
from helpers.sealed import ENTRY, FOOTER, KEY, PAYLOAD, TAG, flipped, verify
from hypothesis import given
from hypothesis import strategies as st

from safecache.reporting.kinds import Kind, Reason
from safecache.signing import seal


def test_every_flipped_bit_of_the_trailer_is_refused():
    for bit in range(len(PAYLOAD) * 8, len(ENTRY) * 8):
        assert verify(flipped(ENTRY, bit)).reason is not None, f"bit {bit} of {len(ENTRY) * 8}"


@given(payload=st.binary(), cache_key=st.text(), data=st.data())
def test_flipped_bit_of_any_entry_is_refused(payload, cache_key, data):
    content = seal.attach(payload, Kind.FX_ENTRY, cache_key, KEY, {})
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    assert verify(flipped(content, bit), Kind.FX_ENTRY, cache_key).reason is not None


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        pytest.param(0, Reason.DAMAGED, id="payload"),
        pytest.param(len(PAYLOAD), Reason.BAD_SEAL, id="body"),
        pytest.param(-FOOTER - TAG, Reason.BAD_SEAL, id="tag"),
        pytest.param(-FOOTER, Reason.BAD_SEAL, id="digest"),
        pytest.param(-30, Reason.UNKNOWN_KEY, id="key-id"),
        pytest.param(-22, Reason.DAMAGED, id="payload-size"),
        pytest.param(-14, Reason.DAMAGED, id="body-size"),
        pytest.param(-10, Reason.UNKNOWN_FORMAT, id="algorithm"),
        pytest.param(-9, Reason.UNKNOWN_FORMAT, id="format"),
        pytest.param(-8, Reason.UNSEALED, id="magic"),
    ],
)
def test_damage_is_named_by_the_part_it_hits(offset, reason):
    assert verify(flipped(ENTRY, (offset % len(ENTRY)) * 8)).reason is reason


def test_every_truncation_is_refused():
    for size in range(len(ENTRY)):
        assert verify(ENTRY[:size]).reason is not None, size
        assert verify(ENTRY[-size:] if size else b"").reason is not None, f"last {size}"


@given(st.binary(min_size=1))
def test_bytes_added_at_either_end_are_refused(extra):
    assert verify(ENTRY + extra).reason is not None
    assert verify(extra + ENTRY).reason is not None


def test_trailer_added_twice_is_refused():
    assert verify(ENTRY + ENTRY[len(PAYLOAD) :]).reason is Reason.DAMAGED


@pytest.mark.parametrize(
    ("offset", "known"), [pytest.param(-9, {seal.FORMAT}, id="format"), pytest.param(-10, {1, 2}, id="algorithm")]
)
def test_every_unknown_format_is_refused(offset, known):
    for value in set(range(256)) - known:
        content = ENTRY[:offset] + bytes([value]) + ENTRY[offset + 1 :]
        assert verify(content).reason is Reason.UNKNOWN_FORMAT, value


def test_footer_that_names_the_other_algorithm_is_refused():
    """A tag of that algorithm has another size, so this alone does not fit; see test_signatures for one that does."""
    assert ENTRY[-10] == 1
    assert verify(ENTRY[:-10] + b"\x02" + ENTRY[-9:]).reason is Reason.DAMAGED


@given(st.binary())
def test_arbitrary_bytes_are_unsealed(content):
    assert verify(content) == (Reason.UNSEALED, None, None)
    assert seal.strip_unverified(content) == content


@given(
    body=st.binary(max_size=300),
    digest=st.binary(min_size=32, max_size=32),
    key_id=st.one_of(st.just(KEY.id), st.binary(min_size=8, max_size=8)),
    sizes=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)) | st.none(),
    split_at=st.integers(0, 300),
    end=st.just(ENTRY[-10:]) | st.binary(min_size=2, max_size=2).map(lambda start: start + ENTRY[-8:]),
)
def test_arbitrary_bytes_before_a_footer_are_refused(body, digest, key_id, sizes, split_at, end):
    """With sizes that fit, also those that leave nothing for the payload or the body."""
    room = max(0, len(body) - TAG)
    payload_size, body_size = sizes or (min(split_at, room), room - min(split_at, room))
    footer = digest + key_id + payload_size.to_bytes(8, "little") + body_size.to_bytes(4, "little") + end
    assert len(footer) == FOOTER
    assert verify(body + footer).reason is not None
    assert (body + footer).startswith(seal.strip_unverified(body + footer))
