"""Processes that compile the same keys and are killed at random: nobody hangs, and each key is compiled in the end."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from pathlib import Path

import pytest

from safecache import single_flight
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind

pytestmark = pytest.mark.timeout(900)

KILLS = 1000 if os.environ.get("SAFECACHE_TEST_EXHAUSTIVE") else 50
PROCESSES = 6
# Keys that one process wants, and seconds that it takes to compile one.
KEYS, TAKES = 4, 0.02


def process(root: Path, round: int) -> None:
    """Wants each key: finds it published, or compiles it; each compile leaves a file that says so."""
    for number in range(KEYS):
        key = f"{round} {number}"
        published = root / f"published {key}"
        if published.exists():
            continue
        with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
            flight = single_flight.wait_or_lead(Ref(Kind.FX_ENTRY, key, str(root)))
            if flight is not None and published.exists():
                flight.mark_found()
                continue
            (root / f"compiled {key} {os.getpid()} {time.monotonic_ns()}").touch()
            time.sleep(TAKES)
            draft = root / f"draft {os.getpid()}"
            draft.write_text(key)
            draft.rename(published)


def start(root: Path, round: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            process(root, round)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def test_random_kills(root):
    dice, killed, round = random.Random(7), 0, 0
    while killed < KILLS:
        round += 1
        running, failed, here = [start(root, round) for _ in range(PROCESSES)], [], 0
        began, spared = time.monotonic(), running[0]
        while running:
            assert time.monotonic() - began < 120, "somebody hangs"
            time.sleep(dice.random() * TAKES)
            # The first is left to see all of it through.
            if dice.random() < 0.5 and len(running) > 1 and spared in running:
                os.kill(dice.choice([child for child in running if child != spared]), signal.SIGKILL)
                here += 1
            for child in list(running):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    running.remove(child)
                    failed += [status] if status not in (0, signal.SIGKILL) else []
        killed += here
        assert not failed
        for number in range(KEYS):
            key = f"{round} {number}"
            assert (root / f"published {key}").read_text() == key
        # One each, and one more for each that may have been killed amid one.
        assert len(list(root.glob(f"compiled {round} *"))) <= KEYS + here
