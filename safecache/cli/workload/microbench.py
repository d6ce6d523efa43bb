"""Times, inside one process with torch, what safecache adds to torch's own work. Run as a script; prints one JSON line.

Every pair is measured in turn, so that a drift of the machine's speed meets both sides.
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


def _save_and_verify(size: int, directory: str) -> dict[str, float]:
    from torch._inductor.codecache import sha256_hash, write_atomic

    from safecache import keyring, layout, provenance, seal, store
    from safecache.seal import Kind

    key = keyring.Key.derive(os.urandom(32))
    payload = os.urandom(size)
    sealed = seal.attach(payload, Kind.FX_ENTRY, "key", key, provenance.describe())

    def stock() -> None:
        write_atomic(os.path.join(directory, "stock", sha256_hash(payload)), payload, make_dirs=True)

    def ours() -> None:
        content = seal.attach(payload, Kind.FX_ENTRY, "key", key, provenance.describe())
        store.publish(os.path.join(directory, "ours", layout.entry_name(content)), content, directory)

    def verify() -> None:
        if seal.verify(sealed, Kind.FX_ENTRY, "key", lambda _: key).reason is not None:
            raise AssertionError("a good entry was refused")

    times: dict[str, list[float]] = {"stock": [], "ours": [], "verify": []}
    for _ in range(_ROUNDS):
        for name, work in (("stock", stock), ("ours", ours), ("verify", verify)):
            times[name].append(_milliseconds(work))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps({size: _save_and_verify(size, directory) for size in _SIZES}))


if __name__ == "__main__":
    main()
