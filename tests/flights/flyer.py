"""A process that compiles something under a lease: waits or holds, and prints what it has come to.

Each step waits for a line of input: to release what it holds, or to end. ``fork`` leaves a child that sleeps.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from safecache.flights import scopes
from safecache.reporting.kinds import Kind


def main(root: str, kind: str, key: str, how: str = "") -> None:
    """As the module says."""
    threading.Thread(target=_run, daemon=True).start()
    with scopes.scope(Kind[kind], float("inf")):
        flight = scopes.enter(Kind[kind], key, root)
        if how == "fork" and os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        held = bool(scopes._thread.scopes[-1].leases)
        print("holds" if held else "looks again" if flight else "compiles", flush=True)
        input()
    print("released", flush=True)
    input()


def _run() -> None:
    """Not to be taken for frozen."""
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
