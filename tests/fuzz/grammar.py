"""Sealed entries in parts: taken apart, and put together again whether they fit or not."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import NamedTuple

from helpers.signed import DOMAIN

from safecache.signing.keys import ALGORITHMS, Key

FOOTER = struct.Struct("<32s8sQIBB8s")
MAGIC = b"\x93SAFECA\n"


class Parts(NamedTuple):
    """The parts of an entry, in their order, and the fields of its footer."""

    payload: bytes
    body: bytes
    tag: bytes
    digest: bytes
    key_id: bytes
    payload_size: int
    body_size: int
    algorithm: int
    format: int = 2
    magic: bytes = MAGIC

    @property
    def footer(self) -> bytes:
        """As bytes; sizes that have no room are cut, as a writer in C would."""
        return FOOTER.pack(
            self.digest,
            self.key_id,
            self.payload_size & (1 << 64) - 1,
            self.body_size & (1 << 32) - 1,
            self.algorithm & 255,
            self.format & 255,
            self.magic,
        )

    @property
    def content(self) -> bytes:
        """The entry."""
        return self.payload + self.body + self.tag + self.footer

    def with_sizes(self) -> Parts:
        """The same with the sizes and the digest of what is there."""
        digest = hashlib.sha256(self.payload).digest()
        return self._replace(digest=digest, payload_size=len(self.payload), body_size=len(self.body))

    def signed(self, key: Key) -> Parts:
        """The same in the name of ``key`` and with its tag, over whatever the fields say."""
        named = self._replace(key_id=key.id, algorithm=key.algorithm.number)
        return named._replace(tag=key.make_tag(DOMAIN + named.footer + named.body))


def take_apart(content: bytes) -> Parts:
    """The parts of ``content``; of bytes that are no entry, one with those as its payload and the rest empty."""
    if len(content) < FOOTER.size or not content.endswith(MAGIC):
        return Parts(content, b"{}", bytes(32), bytes(32), bytes(8), len(content), 2, 1)
    fields = FOOTER.unpack(content[-FOOTER.size :])
    rest = content[: -FOOTER.size]
    algorithm = ALGORITHMS.get(fields[4])
    tag_size = 32 if algorithm is None else algorithm.tag_size
    before = rest[: max(0, len(rest) - tag_size)]
    return Parts(before[: fields[2]], before[fields[2] :], rest[len(before) :], *fields)


def body(**fields: object) -> bytes:
    """The JSON that safecache would write of these fields."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
