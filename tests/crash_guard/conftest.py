"""Keys and settings of its own for each of these tests, and no process that outlives it."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from helpers.in_process import isolated, run, settings

__all__ = ["isolated", "run", "settings"]


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Have each process that the test forks lead a group, which is killed when the test ends, even if it is stopped."""
    fork, own, pids = os.fork, os.getpid(), []

    def fork_apart():
        pid = fork()
        if own == (os.getpid() if pid else os.getppid()):
            os.setpgid(pid, pid)  # in both of them: either may be first
            pids.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", fork_apart)
    yield
    if os.getpid() != own:
        os._exit(1)  # a child that raised an error is not to run the other tests
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
