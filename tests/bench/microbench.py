"""Times, inside one process with torch, what safecache adds to torch's own work. Run as a script; prints one JSON line.

Every pair is measured in turn, so that a drift of the machine's speed affects both sides.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

_SIZES = (10_000, 100_000, 1_000_000)
_ROUNDS = 200


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def _costs(size: int, directory: str) -> dict[str, float]:
    """Milliseconds to save and to read an entry of this size, with torch and with safecache."""
    from torch._inductor.codecache import sha256_hash, write_atomic

    from safecache.places import layout
    from safecache.reporting.kinds import Kind
    from safecache.signing import keyring, provenance, seal
    from safecache.store import entry_files

    key = keyring.Key.derive(os.urandom(32))
    payload = os.urandom(size)
    stocks = os.path.join(directory, "stock", sha256_hash(payload))

    def sealed() -> bytes:
        return seal.attach(payload, Kind.FX_ENTRY, "key", key, provenance.describe())

    def save() -> str:
        content = sealed()
        path = os.path.join(directory, "ours", layout.name_entry(content))
        entry_files.publish(path, content, directory)
        return path

    def verify(content: bytes) -> None:
        if seal.verify(content, Kind.FX_ENTRY, "key", lambda _: key).reason is not None:
            raise AssertionError("a good entry was refused")

    def stock_save() -> None:
        # As FxGraphCache._write_to_local_cache() in torch/_inductor/codecache.py, which names an entry by its content.
        write_atomic(os.path.join(directory, "stock", sha256_hash(payload)), payload, make_dirs=True)

    def stock_read() -> bytes:
        with open(stocks, "rb") as file:
            return file.read()

    entry, path = sealed(), save()
    work: dict[str, Callable[[], object]] = {
        "stock save": stock_save,
        "save": save,
        "synced save": lambda: entry_files.replace(path, sealed(), durably=True),
        "stock read": stock_read,
        "read": lambda: verify(entry_files.read_unverified_entry(path)),
        "verify": lambda: verify(entry),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(_ROUNDS):
        for name, each in work.items():
            times[name].append(_milliseconds(each))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps({size: _costs(size, directory) for size in _SIZES}))


if __name__ == "__main__":
    main()
