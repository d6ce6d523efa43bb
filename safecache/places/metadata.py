"""Paths of safecache's own files in a cache, all below ``<cache>/.safecache``, where torch and Triton never look.

``crashes/<hash>/``: reports of crashes of Triton's compiler. ``differences/<word of the kind>-<digest of the key>/``:
entries that recompile differently. ``gc.stamp``: when the last sweep was started.
``journal/<time>-<pid>-<nonce>.jsonl``: results of lookups. ``keys/<word of the kind>/<digest of the name>/``: the parts
of keys. ``known_bad/<hash>``: kernels not to compile, since the compiler has crashed on them. ``leases/<word of the
kind>-<digest of the key>``: the process that compiles for the key. ``quarantine/<name>``, ``<name>.json``: a refused
file, and why. ``records/<two digits>/<hash>``: sealed statements about files without a seal. ``trash/<nonce>/``: files
being removed. ``trials/run-<process>-<nonce>``: the guarded first runs of a process. ``unsealed/<name>``: ninja's old
outputs, for ``safecache adopt``. The guide's page on security says why each is trusted.
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
    "find_user_path",
    "make_path",
    "make_record_path",
]

FOLDER = ".safecache"
CRASHES, DIFFERENCES, JOURNAL, KEYS = "crashes", "differences", "journal", "keys"
KNOWN_BAD, LEASES = "known_bad", "leases"
QUARANTINE, RECORDS, STAMP, TRASH, TRIALS = "quarantine", "records", "gc.stamp", "trash", "trials"
UNSEALED = "unsealed"


def make_path(root: str, *names: str) -> str:
    """Return the path of ``names`` in the directory of safecache's own files in the cache ``root``."""
    return os.path.join(root, FOLDER, *names)


def make_record_path(root: str, hashed: str) -> str:
    """Return the path of the record, in the cache ``root``, of the file whose name has this hash."""
    return make_path(root, RECORDS, hashed[:2], hashed)


def find_user_path(config_home: str, root: str) -> str:
    """Return the directory, among the user's own files, for strikes and markers of first runs of the cache ``root``.

    ``config_home``: as XDG_CONFIG_HOME. Strikes are always kept there, markers only if ``root`` cannot be written.
    """
    return os.path.join(config_home, "safecache", TRIALS, hashlib.sha256(os.fsencode(root)).hexdigest()[:32])
