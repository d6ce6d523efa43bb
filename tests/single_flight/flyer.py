"""A process that compiles something under a lease: waits or holds, and prints what it has come to.

Each step waits for a line of input: to release what it holds, or to end. ``fork`` leaves a child that lives
until that input ends. ``trains``: it compiles a graph that trains.
compile_once() does all of it in one go.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from safecache import compiles, single_flight
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind

KEY = "what all compile"


def published(root: str) -> Path:
    """What is there once it is compiled."""
    return Path(root, "published")


def compile_once(root: str) -> None:
    """Find it, or compile it; and say which."""
    with single_flight.compile_scope(Kind.FX_ENTRY, float("inf")):
        flight = single_flight.wait_or_lead(Ref(Kind.FX_ENTRY, KEY, root))
        if flight is not None and published(root).exists():
            flight.mark_found()
            print("found", flush=True)
            return
        draft = Path(root, f"draft {os.getpid()}")
        draft.write_text(KEY)
        draft.rename(published(root))
    print("compiled", flush=True)


def main(root: str, kind: str, key: str, how: str = "") -> None:
    """As the module says."""
    threading.Thread(target=_run, daemon=True).start()
    with single_flight.compile_scope(Kind[kind], float("inf"), trains=how == "trains"):
        flight = single_flight.wait_or_lead(Ref(Kind[kind], key, root))
        if how == "fork" and os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        held = bool(compiles.current.flights[-1].leases)
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
