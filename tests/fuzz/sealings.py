"""One sealed entry of every kind, under a key of each algorithm, and where its parts lie."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import NamedTuple

from helpers.key_cases import MAC, PRIVATE
from helpers.sealed import FOOTER, KINDS

from safecache.reporting.kinds import Kind
from safecache.signing import seal
from safecache.signing.keys import Algorithm, Key

CACHE_KEY = "fkey4nm2p5v5s3h7jq"
PAYLOAD = pickle.dumps({"graph": list(range(200)), "source": "def call(args):\n    return args\n" * 4})
PROVENANCE = {"torch": "2.15.0", "triton": "3.9.0", "gpu": "sm_90", "cpu": "x86_64 avx2"}


class Sealing(NamedTuple):
    """An entry, and what it must be asked for to be taken."""

    content: bytes
    kind: Kind
    key: Key
    payload: bytes = PAYLOAD

    def verify(self, content: bytes) -> seal.Verdict:
        """What is said of ``content`` in its place; only this key is trusted, and of a signature its public part."""
        held = self.key.extract_public() if self.key.algorithm is Algorithm.ED25519 else self.key
        return seal.verify(content, self.kind, CACHE_KEY, {held.id: held}.get)

    @property
    def parts(self) -> dict[str, range]:
        """The places of its bytes, by the part that they belong to."""
        size = len(self.content)
        footer, tag = size - FOOTER, size - FOOTER - self.key.algorithm.tag_size
        return {
            "payload": range(len(self.payload)),
            "body": range(len(self.payload), tag),
            "tag": range(tag, footer),
            "footer": range(footer, size),
        }


def make(kind: Kind, key: Key, payload: bytes = PAYLOAD) -> Sealing:
    """``payload`` sealed with ``key``."""
    return Sealing(seal.attach(payload, kind, CACHE_KEY, key, PROVENANCE), kind, key, payload)


def each() -> Iterator[Sealing]:
    """One of every kind, under each algorithm."""
    for key in (MAC, PRIVATE):
        for kind in KINDS:
            yield make(kind, key)
