"""Keys and settings of its own for each of these tests, and other processes that take leases."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SOURCE
from helpers.in_process import isolated, settings

__all__ = ["flyer", "isolated", "root", "settings"]

PROGRAM = Path(__file__).with_name("flyer.py")


class Flyer:
    """A process that holds a lease, or waits for one: see flyer.py. Each line that it prints is what it has come to."""

    def __init__(self, *arguments, **environment) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment,
        )
        self.pid = self.process.pid

    def says(self) -> str:
        """Its next line; "" at its end."""
        return self.process.stdout.readline().strip()

    def await_lease(self) -> None:
        """Until it has opened one."""
        while not any("/leases/" in each for each in self._opened()):
            time.sleep(0.01)

    def _opened(self) -> Iterator[str]:
        for each in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                yield os.readlink(each)

    def go_on(self) -> None:
        """To its next step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """However it is."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def root(tmp_path):
    """An empty cache."""
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def flyer():
    """Starts such processes, which are ended with the test."""
    started = []

    def start(*arguments, **environment):
        started.append(Flyer(*arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        each.end()
