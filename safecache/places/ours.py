"""Where safecache keeps what is its own in a cache: every path below ``<cache>/.safecache``, where nobody else looks.

``crashes/<hash>/``: reports of crashes of Triton's compiler. ``differences/<word of the kind>-<digest of the key>/``:
entries that are compiled otherwise now. ``gc.stamp``: when the last sweep was started.
``journal/<time>-<pid>-<nonce>.jsonl``: what lookups came to. ``keys/<word of the kind>/<digest of the name>/``: what
keys were made of. ``known_bad/<hash>``: what not to compile, for the compiler has crashed of it.
``leases/<word of the kind>-<digest of the key>``: who is compiling what is looked up under the key.
``quarantine/<name>``, ``<name>.json``: what was refused, and why. ``records/<two digits>/<hash>``: what is said, under
a seal, of files that carry none. ``trash/<nonce>/``: what is being removed. ``trials/run-<process>-<nonce>``: what a
process runs for the first time. ``unsealed/<name>``: what ninja had built before, for ``safecache adopt``. What makes
each of them believed, the guide's page on security says.
"""

from __future__ import annotations

import hashlib
import os

__all__ = [
    "CRASHES",
    "DIFFERENCES",
    "FOLDER",
    "JOURNAL",
    "KEYS",
    "KNOWN_BAD",
    "LEASES",
    "QUARANTINE",
    "RECORDS",
    "STAMP",
    "TRASH",
    "TRIALS",
    "UNSEALED",
    "metadata_path",
    "record",
    "user_metadata_path",
]

FOLDER = ".safecache"
CRASHES, DIFFERENCES, JOURNAL, KEYS = "crashes", "differences", "journal", "keys"
KNOWN_BAD, LEASES = "known_bad", "leases"
QUARANTINE, RECORDS, STAMP, TRASH, TRIALS = "quarantine", "records", "gc.stamp", "trash", "trials"
UNSEALED = "unsealed"


def metadata_path(root: str, *names: str) -> str:
    """What lies there under these names, in the cache ``root``."""
    return os.path.join(root, FOLDER, *names)


def record(root: str, hashed: str) -> str:
    """The record, in the cache ``root``, of the file whose name has this hash."""
    return metadata_path(root, RECORDS, hashed[:2], hashed)


def user_metadata_path(config_home: str, root: str) -> str:
    """What takes the place of ``root``, a cache that cannot be written, among the user's own files."""
    return os.path.join(config_home, "safecache", TRIALS, hashlib.sha256(os.fsencode(root)).hexdigest()[:32])
