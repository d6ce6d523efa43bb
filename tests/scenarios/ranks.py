"""Runs training.py, and checks what its ranks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from conftest import SOURCE, TESTS, isolated_environment

from . import log_lines

PROGRAM = Path(__file__).with_name("training.py")


def train(base: Path, device: str, *, stock: bool = False, reasons: Sequence[str] = ()) -> list[dict]:
    """One run of it with the caches below ``base``; what each rank says.

    ``reasons``: of safecache's lines, in each process that says something; one at least does then.
    """
    base.mkdir(exist_ok=True)
    variables = {
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS), os.environ.get("PYTHONPATH", "")]).strip(":"),
        "TMPDIR": str(base),
        "SAFECACHE": "0" if stock else "1",
    } | ({"TORCHINDUCTOR_COMPILE_THREADS": "1"} if device == "cpu" else {})
    command = [sys.executable, str(PROGRAM), json.dumps({"device": device, "directory": str(base)})]
    began = time.monotonic()
    done = subprocess.run(
        command, env=os.environ | isolated_environment(base) | variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-6000:]
    ranks = json.loads(done.stdout.splitlines()[-1])
    assert not any("failed" in rank for rank in ranks), ranks
    lines = log_lines.reasons(done.stderr)
    assert all(said == list(reasons) for said in lines) and bool(lines) == bool(reasons), done.stderr
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"who": "stock" if stock else "safecache", "seconds": seconds, "ranks": ranks}))
    return ranks


def check(ranks: list[dict]) -> None:
    """The ranks have the same parameters, and gradients as in double precision."""
    first = ranks[0]
    assert len(ranks) == 2 and all(rank["parameters"] == first["parameters"] for rank in ranks), ranks
    assert all(rank["error"] < 1e-5 for rank in ranks), ranks
    assert ranks[0]["losses"] != ranks[1]["losses"], "each has rows of its own"


def check_hits(ranks: list[dict]) -> None:
    """All that is asked for is there, for each rank alike."""
    for rank in ranks:
        hits, misses, bypassed = rank["aot"]
        assert hits > 0 and misses == 0 and bypassed == 0, ranks
        assert rank["fx"][0] > 0 and rank["fx"][1] == 0, ranks
        assert rank["aot"] == ranks[0]["aot"] and rank["fx"] == ranks[0]["fx"], ranks
