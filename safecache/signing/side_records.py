"""Side records: what safecache notes beside a cache, or in a remote, and believes only under a seal.

A strike, a lease or a verdict decides what is compiled, and for how long a process waits. So each of them is a small
JSON object with a seal over it that also states its ``subject``: a record of one subject is none of another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from safecache.fs import filesystem
from safecache.fs.folders import Folder
from safecache.reporting.kinds import Kind
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, provenance, seal, trust

__all__ = ["LARGEST", "is_own", "open_record", "read_own", "seal_record"]

# Bytes of a record with its seal.
LARGEST = 64 << 10


def seal_record(subject: str, content: Mapping[str, Any]) -> bytes | None:
    """Return ``content`` as JSON with this user's seal; None for a process that has no key to seal with."""
    key = keyring.current(tell=False).signing
    if key is None:
        return None
    payload = json.dumps(content, sort_keys=True).encode()
    stated = provenance.make_statement(Kind.SIDE_RECORD)
    return seal.attach(payload, Kind.SIDE_RECORD, subject, key, stated, config.current().namespace)


def open_record(unverified: bytes, subject: str, *, own: bool) -> dict[str, Any] | None:
    """Return the content of a record that a trusted key has sealed for this ``subject``; None for any other bytes.

    With ``own``, only what this user's own key has sealed counts: other trusted keys vouch for entries, not for what
    this user's processes have seen. Raises nothing for any bytes.
    """
    if len(unverified) > LARGEST or (own and not is_own(unverified)):
        return None
    if isinstance(trust.examine(unverified, Kind.SIDE_RECORD, subject, None), Refusal):
        return None
    try:
        content = json.loads(seal.strip_unverified(unverified))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_own(folder: Folder, name: str, subject: str) -> dict[str, Any] | None:
    """Return the content of the record of ``subject`` in the file ``name``; None unless this user's own key sealed it.

    Raises OSError.
    """
    descriptor = folder.open(name, os.O_RDONLY)
    try:
        unverified = filesystem.pread(descriptor, LARGEST + 1, 0)
    finally:
        filesystem.close(descriptor)
    return open_record(unverified, subject, own=True)


def is_own(unverified: bytes) -> bool:
    """Tell whether the bytes name this user's own key as the one that has sealed them. The seal is not verified."""
    footer, key = seal.split_unverified(unverified), keyring.current(tell=False).signing
    return footer is not None and key is not None and footer.key_id == key.id
