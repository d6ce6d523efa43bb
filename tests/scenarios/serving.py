"""Starts the server of server.py on a cache of its own, with one thing wrong, and tells what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conftest import SOURCE, TESTS, isolated_environment
from faults import damage

SERVER = Path(__file__).with_name("server.py")
_LINE = re.compile(
    r"^safecache: (?P<what>.+?) \[(?P<reason>[^\]]+)\] (?P<remedy>.+) \(Said once.*\[pid (?P<pid>\d+)\]$"
)


class Started:
    """What a server said, and the lines of safecache in its log."""

    def __init__(self, done: subprocess.CompletedProcess, seconds: float) -> None:
        self.log = done.stderr
        found = [line for line in done.stdout.splitlines() if line.startswith("[{")]
        assert found, done.stderr[-6000:] + done.stdout[-2000:]
        self.workers = json.loads(found[-1])
        self.seconds = round(seconds, 1)
        self.lines = [line for line in done.stderr.splitlines() if line.startswith("safecache: ")]

    @property
    def up(self) -> bool:
        return all(worker["up"] for worker in self.workers)

    @property
    def reasons(self) -> list[list[str]]:
        """Of the lines of each process that has said something."""
        by_process: dict[str, list[str]] = {}
        for line in self.lines:
            match = _LINE.match(line)
            assert match, f"no cause, no remedy or no process: {line}"
            by_process.setdefault(match["pid"], []).append(match["reason"])
        return [sorted(reasons) for reasons in by_process.values()]

    @property
    def logits(self) -> list[float]:
        return [number for worker in self.workers for answer in worker["answers"] for number in answer["logits"]]

    def outcome(ran: list[Started] | Exception, site: Site) -> dict:
    """What became of a case, to be printed."""
    if isinstance(ran, Exception):
        return {"outcome": f"{type(ran).__name__}: {ran}"[:300], "marker": site.marker.exists()}
    first = ran[0]
    told = {"outcome": [each.outcome() for each in ran], "seconds": [each.seconds for each in ran]}
    return told | {"lines": len(first.lines), "marker": site.marker.exists()} | versions(first)


def versions(started: Started) -> dict:
    return {name: started.workers[0].get(name) for name in ("torch", "triton")}
