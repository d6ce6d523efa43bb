"""A compiler that a signal ended is started once more; one that fails, or that a user has ended, is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import needs_root

from safecache.built_code import library_builds

GCC = "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated."
CLANG = "clang++: error: unable to execute command: Killed\nclang++: error: clang frontend command failed"


class CompileError(RuntimeError):
    """As torch's: what the compiler has printed."""


def compiler(*ends):
    """Compiles that end so, one after the other; how many there were."""
    runs = []

    def compile():
        end = ends[len(runs)]
        runs.append(end)
        if isinstance(end, str):
            raise CompileError(f"C++ compile error\n\nOutput:\n{end}") from subprocess.CalledProcessError(1, "g++")
        if end:
            # Whoever has started the tests may ignore it, and what they start inherits that.
            default = "" if end == signal.SIGKILL else f"signal.signal({end}, signal.SIG_DFL); "
            kill = f"import os, signal; {default}os.kill(os.getpid(), {end})"
            subprocess.run([sys.executable, "-c", kill], check=True)
        return "made"

    return compile, runs


@pytest.mark.parametrize("end", [GCC, CLANG, signal.SIGKILL, signal.SIGSEGV], ids=["gcc", "clang", "KILL", "SEGV"])
def test_what_a_signal_ended_is_run_once_more(caplog, end):
    compile, runs = compiler(end, 0)
    assert library_builds.repeat_if_killed(compile) == "made" and len(runs) == 2
    [line] = caplog.messages
    assert "ended by a signal (" in line and "once more, one at a time in this container" in line


@pytest.mark.parametrize(
    "end",
    ["a.cpp:1:1: error: expected ';'", GCC.replace("Killed", "Terminated"), signal.SIGTERM, signal.SIGINT],
    ids=["error", "gcc", "TERM", "INT"],
)
def test_what_fails_otherwise_is_raised_as_it_is(caplog, end):
    compile, runs = compiler(end, 0)
    with pytest.raises(CompileError if isinstance(end, str) else subprocess.CalledProcessError):
        library_builds.repeat_if_killed(compile)
    assert len(runs) == 1 and caplog.messages == []


def test_second_end_is_raised():
    compile, runs = compiler(GCC, GCC, 0)
    with pytest.raises(CompileError, match="cc1plus"):
        library_builds.repeat_if_killed(compile)
    assert len(runs) == 2


def test_second_attempts_are_made_one_after_the_other():
    inside, most, first = [], [], threading.Barrier(3)

    def compile():
        if threading.current_thread() not in seen:
            seen.add(threading.current_thread())
            first.wait(10)
            raise CompileError(GCC)
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()

    seen = set()
    threads = [threading.Thread(target=library_builds.repeat_if_killed, args=(compile,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1, 1, 1]


HOLD = """
import os, socket
held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
held.bind(f"\\0safecache: compilers of {os.geteuid()}")
print(flush=True)
input()
"""


@needs_root
@pytest.mark.parametrize("within", [[], ["unshare", "--net"]], ids=["here", "container"])
def test_second_attempt_waits_for_none_in_another_container(monkeypatch, within):
    monkeypatch.setenv("SAFECACHE_LOCK_TIMEOUT", "2")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*within, sys.executable, "-c", HOLD], **pipes) as other:
        assert other.stdout.readline() == "\n"
        compile, _ = compiler(GCC, 0)
        began = time.monotonic()
        assert library_builds.repeat_if_killed(compile) == "made"
        assert (time.monotonic() - began < 2) is bool(within)
        other.communicate("\n")


def test_whoever_holds_the_name_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setenv("SAFECACHE_LOCK_TIMEOUT", "1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as squatter:
        squatter.bind(f"\0safecache: compilers of {os.geteuid()}")
        compile, _ = compiler(GCC, 0)
        assert library_builds.repeat_if_killed(compile) == "made"
