"""A lock that a thread of the parent holds at a fork would be held in the child for ever."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import python

PACKAGE = Path(__file__).parents[2] / "safecache"


FORK = """
import os, signal, threading
from safecache.session import ForkLock
lock, begun, ended = ForkLock(), threading.Event(), threading.Event()
def hold():
    with lock:
        begun.set()
        ended.wait()
def in_child(function):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]
def take():
    with lock:
        return 0
def is_open():
    took = []
    other = threading.Thread(target=lambda: took.append(take()), daemon=True)
    other.start()
    other.join(1)
    return len(took)
def is_open_while_held():
    ended.clear(), begun.clear()
    threading.Thread(target=hold).start()
    begun.wait()
    return is_open()
"""


@pytest.mark.parametrize(
    "code",
    [
        "thread = threading.Thread(target=hold); thread.start(); begun.wait(); status = in_child(take); ended.set()",
        "status = in_child(take)",
        # The thread that forks holds it: it goes on to hold it, in the child too, and releases it there.
        "with lock:\n    pid = in_child(take)\nstatus = pid",
        "with lock:\n    with lock:\n        status = in_child(is_open)",
        "lock.__enter__(); status = in_child(lambda: (lock.__exit__(), take())[1])",
        # What a child has renewed keeps others out as before.
        "status = in_child(is_open_while_held)",
    ],
    ids=["another thread", "nobody", "itself", "itself twice", "itself until then", "renewed"],
)
def test_a_child_can_take_it_whoever_held_it(code):
    done = python(FORK + code + "\nprint(status)")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_nobody_forks_while_another_thread_holds_the_lock_for_that():
    held = (
        "from safecache.session import fork_lock as lock\nthreading.Thread(target=hold).start(); begun.wait()\n"
        "threading.Timer(0.5, ended.set).start()\n"
        "print(in_child(lambda: take() or not ended.is_set()), ended.is_set())"
    )
    done = python(FORK + held)
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stderr


def test_each_lock_of_a_module_is_free_in_a_forked_child():
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value) in ("threading.Lock()", "threading.RLock()"):
                found.add(f"{path.relative_to(PACKAGE)}: {ast.unparse(node.targets[0])}")
    assert found == set()
