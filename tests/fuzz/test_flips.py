"""A hundred thousand flips: of single bits and of bursts, in every kind of entry and each of its parts.

None is accepted, not even where the payload is what it was, and none raises.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from helpers.sealed import flipped

from fuzz import sealings
from fuzz.sealings import Sealing
from safecache import session
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.signing import seal
from safecache.signing.keys import Algorithm
from safecache.store import attestations, entry_files, gate, manifests

# A flip is verified in microseconds under a MAC, and in a tenth of a millisecond under a signature.
FLIPS = {Algorithm.HMAC_SHA256: 8_000, Algorithm.ED25519: 2_000}
RECORD_FLIPS = 2_000
SEALINGS = list(sealings.each())
EACH = pytest.mark.parametrize("entry", SEALINGS, ids=lambda entry: f"{entry.kind.value}-{entry.key.algorithm.value}")


def burst(content: bytes, place: int, chance: random.Random) -> bytes:
    """``content`` with up to 64 bytes from ``place`` on that are random, all zeros or all ones."""
    size = min(chance.randint(1, 64), len(content) - place)
    wrong = chance.choice((chance.randbytes(size), bytes(size), b"\xff" * size))
    return content[:place] + wrong + content[place + size :]


def spoiled(content: bytes, parts: list[range], flips: int, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """``flips`` times something else than ``content``, and what was done: by turns in every part, bit and burst."""
    done = 0
    while done < flips:
        place = chance.choice(parts[done % len(parts)])
        if done // len(parts) % 2:
            bit = chance.randrange(8)
            what, changed = f"bit {bit} of byte {place}", flipped(content, place * 8 + bit)
        else:
            what, changed = f"burst from byte {place}", burst(content, place, chance)
        if changed != content:
            done += 1
            yield what, changed


def test_there_are_a_hundred_thousand():
    assert sum(FLIPS[entry.key.algorithm] for entry in SEALINGS) + 2 * RECORD_FLIPS >= 100_000


@EACH
def test_no_flip_is_accepted(entry: Sealing):
    seed = f"{entry.kind.value} {entry.key.algorithm.value}"
    assert entry.verify(entry.content).reason is None
    seen = set()
    flips = FLIPS[entry.key.algorithm]
    for what, changed in spoiled(entry.content, list(entry.parts.values()), flips, random.Random(seed)):
        reason = entry.verify(changed).reason
        assert reason is not None, f"{what}, random.Random({seed!r}); payload {seal.strip_unverified(changed)!r}"
        seen.add(reason)
    assert {Reason.DAMAGED, Reason.BAD_SEAL, Reason.UNSEALED, Reason.UNKNOWN_KEY, Reason.UNKNOWN_FORMAT} <= seen


@pytest.fixture
def library(tmp_path, monkeypatch):
    path = tmp_path / "cache" / "ab" / "abc.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF" + random.Random("library").randbytes(2_000))
    session.reset()
    gate.attest_file(CodeFile(str(path), str(tmp_path / "cache")))
    return path


def judge(library):
    """What a process says of it that has seen nothing before."""
    attestations._state.reset()
    return gate.judge_file(CodeFile(str(library), str(library.parents[1])))


@pytest.mark.parametrize("spoil", ["record", "library"])
def test_no_flip_in_a_library_or_in_its_record_is_accepted(library, spoil):
    assert judge(library) is None
    name = manifests.record_path(CodeFile(str(library), str(library.parents[1]))) if spoil == "record" else str(library)
    content = entry_files.read_unverified_entry(name)
    footer = seal.split_unverified(content)
    ends = [0, len(content)]
    if footer is not None:
        ends = [0, footer.payload_size, footer.payload_size + footer.body_size, len(content) - 62, len(content)]
    parts = [range(*pair) for pair in itertools.pairwise(ends)]
    events._state.reset()
    for what, changed in spoiled(content, parts, RECORD_FLIPS, random.Random(spoil)):
        with open(name, "wb") as file:
            file.write(changed)
        refusal = judge(library)
        assert refusal is not None, f"{what} of the {spoil}, random.Random({spoil!r})"
    assert "code verified" not in events.read_counters()
