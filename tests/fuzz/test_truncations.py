"""Entries that were cut short, or lost pages to a power failure: none is accepted, whatever is left.

That a cache heals of it is in tests/faults/test_damaged_entries.py, test_planted_artifacts.py and test_planted_code.py.
"""

from __future__ import annotations

import random

import pytest
from helpers.key_cases import BOTH, MAC

from fuzz import sealings
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import seal

PAGE = 4096
CUTS = 10_000


def treacherous(size: int) -> bytes:
    """A payload in which sealed entries of the same kind and cache key lie: cut behind one, it ends as an entry does."""
    inner = sealings.make(Kind.FX_ENTRY, MAC, b"inner payload").content
    chance = random.Random(size)
    filled = b""
    while len(filled) < size:
        filled += chance.randbytes(chance.randint(1, size // 8)) + inner
    return filled


@BOTH
@pytest.mark.parametrize("kind", sealings.KINDS, ids=lambda kind: kind.value)
def test_every_length_up_to_a_page_is_refused(key, kind):
    entry = sealings.make(kind, key, treacherous(PAGE))
    assert len(entry.content) > PAGE and entry.verify(entry.content).reason is None
    reasons = set()
    for size in range(PAGE + 1):
        for left in (entry.content[:size], entry.content[len(entry.content) - size :]):
            reason = entry.verify(left).reason
            assert reason is not None, f"{size} bytes left"
            reasons.add(reason)
    assert reasons == {Reason.UNSEALED, Reason.DAMAGED}


@BOTH
def test_random_lengths_of_a_large_entry_are_refused(key):
    entry = sealings.make(Kind.FX_ENTRY, key, treacherous(1 << 20))
    assert entry.verify(entry.content).reason is None
    chance = random.Random("lengths")
    # A third ends just behind what looks like a footer.
    magic = entry.content[-8:]
    ends, found = [], entry.content.find(magic)
    while found + len(magic) < len(entry.content):
        ends.append(found + len(magic))
        found = entry.content.find(magic, found + 1)
    sizes = [chance.choice(ends) if n % 3 == 0 else chance.randrange(PAGE, len(entry.content)) for n in range(CUTS)]
    assert len(ends) > 10
    for size in sizes:
        assert entry.verify(entry.content[:size]).reason is not None, f"{size} bytes left"


@BOTH
def test_zeroed_pages_are_refused(key):
    """As after a power failure: the size was written, and not the data."""
    entry = sealings.make(Kind.FX_ENTRY, key, random.Random("pages").randbytes(300_000))
    content, size = entry.content, len(entry.content)
    for start in range(0, size, PAGE):
        end = min(start + PAGE, size)
        assert entry.verify(content[:start] + bytes(end - start) + content[end:]).reason is not None, start
        assert entry.verify(content[:start] + bytes(size - start)).reason is not None, f"all from {start} on"
        assert entry.verify(bytes(end) + content[end:]).reason is not None, f"all up to {end}"


def test_payload_that_is_all_zeros_hides_no_lost_page():
    """The pages of the payload cannot be told from lost ones; those of the seal can."""
    entry = sealings.make(Kind.FX_ENTRY, MAC, bytes(3 * PAGE))
    for end in range(1, len(entry.content) - 3 * PAGE + 1):
        lost = entry.content[:-end] + bytes(end)
        assert entry.verify(lost).reason is not None, f"the last {end} bytes"
    assert entry.verify(bytes(2 * PAGE) + entry.content[2 * PAGE :]).reason is None
    assert seal.strip_unverified(entry.content) == bytes(3 * PAGE)
