"""What is told of a job without a reply."""

from __future__ import annotations

import signal

import pytest

from safecache.isolation import client
from safecache.isolation.connection import Ended

LIMIT = 1 << 30
SMALL = 100 << 20


@pytest.mark.parametrize(
    ("status", "peak", "output", "expected"),
    [
        (-signal.SIGABRT, SMALL, "Assertion `x' failed.", ("signal", signal.SIGABRT)),
        (-signal.SIGSEGV, SMALL, "", ("signal", signal.SIGSEGV)),
        (-signal.SIGKILL, SMALL, "", ("signal", signal.SIGKILL)),
        (None, SMALL, "", ("signal", signal.SIGKILL)),
        (0, SMALL, "", ("exit", 0)),
        (70, SMALL, "", ("exit", 70)),
        (70, SMALL, "Traceback (most recent call last):\nMemoryError", ("memory", LIMIT)),
        (127, SMALL, "python: cannot allocate memory for thread-local data: ABORT", ("memory", LIMIT)),
        (127, SMALL, "ptxas: not found", ("exit", 127)),
        (-signal.SIGABRT, SMALL, "LLVM ERROR: out of memory\nAllocation failed", ("memory", LIMIT)),
        (-signal.SIGABRT, SMALL, "terminate called after throwing 'std::bad_alloc'", ("memory", LIMIT)),
        (-signal.SIGSEGV, LIMIT - SMALL // 2, "", ("memory", LIMIT)),
        (-signal.SIGKILL, LIMIT + SMALL, "", ("memory", LIMIT)),
        (-signal.SIGSEGV, LIMIT - 2 * SMALL, "", ("signal", signal.SIGSEGV)),
    ],
)
def test_a_death_is_for_want_of_memory_where_that_can_be_told(status, peak, output, expected):
    assert client.classify_death(Ended(status, peak), output, LIMIT) == expected


@pytest.mark.parametrize(
    ("error", "output", "expected"),
    [
        ({"type": "MemoryError", "message": ""}, "", True),
        ({"type": "builtins.MemoryError", "message": ""}, "", True),
        ({"type": "triton.runtime.errors.PTXASError", "message": "ptxas fatal : Memory allocation failure"}, "", True),
        ({"type": "builtins.RuntimeError", "message": "PassManager::run failed"}, "LLVM ERROR: out of memory", True),
        ({"type": "builtins.RuntimeError", "message": "PassManager::run failed"}, "Assertion `x' failed.", False),
        ({"type": "builtins.ValueError", "message": "out of range"}, "", False),
        ({}, "", False),
        (None, "", False),
        ("MemoryError", "", False),
    ],
)
def test_a_failure_is_for_want_of_memory_where_that_can_be_told(error, output, expected):
    assert client.is_out_of_memory({"error": error}, output) is expected


def test_a_reply_without_an_error_is_not_for_want_of_memory():
    assert not client.is_out_of_memory({"key": "out of memory"}, "out of memory")


@pytest.mark.parametrize(("seconds", "told"), [(0.1, 1), (1.0, 1), (1.5, 2), (600.0, 600)])
def test_a_limit_of_time_is_told_in_whole_seconds(seconds, told):
    assert client.make_timeout_ending(seconds) == ("timeout", told)
