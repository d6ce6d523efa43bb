"""What waits to be compiled again: too much of it, compiles that crash or are killed, forks, and the program's end."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from types import SimpleNamespace

import pytest

from safecache import session
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.verification import background, graphs
from safecache.verification.background import Job
from safecache.verification.verdicts import Entry

JOB = Job(b"graph", [Entry((Kind.FX_ENTRY, "fkey"), b"content", "", "")])
# Stands for the compile: ``worker.main`` does what the test wants.
BOOT = (
    "import sys; sys.path[:] = {{!r}};"
    "import os, signal, time;"
    "from types import ModuleType;"
    "import safecache.verification;"
    "worker = safecache.verification.worker = sys.modules['safecache.verification.worker'] = ModuleType('worker');"
    "worker.main = lambda asked, answered: {};"
    "from safecache.verification import guardian; guardian.main(*{{!r}})"
)


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch, tmp_path):
    session.reset()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield
    session.reset()


@pytest.fixture
def compiles(monkeypatch):
    """Have this code take the place of each compile."""
    return lambda code: monkeypatch.setattr(background, "_BOOT", BOOT.format(code))


@pytest.fixture
def held(monkeypatch):
    """Compiles last until this is set."""
    held = threading.Event()

    def asked(job):
        held.wait()
        return {"verdicts": [{"kind": "FX_ENTRY", "key": "fkey", "differences": []}]}

    monkeypatch.setattr(background, "_asked", asked)
    yield held
    held.set()


def until(condition):
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended with SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended with SIGKILL"),
        ("os.kill(os.getppid(), signal.SIGKILL) or time.sleep(1000)", "ended with SIGKILL"),
        ("(os.write(answered, b'[' * 9), os.abort())", "ended with SIGABRT"),
        ("1 / 0", "ended with status 70: ZeroDivisionError: division by zero"),
        ("os._exit(3)", "ended with status 3"),
        ("None", "ended with status 0"),
    ],
)
def test_compile_that_ends_otherwise_is_told(compiles, code, said, tmp_path):
    compiles(code)
    assert background._asked(JOB)["failed"].startswith(f"the process that compiled it {said}")
    assert os.listdir(tmp_path / "temporary") == []


def test_answer_that_is_none_is_told_and_the_next_is_compiled(compiles, caplog):
    compiles("os.write(answered, b'[')")
    background.submit(JOB)
    assert background.wait(60)
    compiles("os.write(answered, b'{{\"verdicts\": []}}')")
    background.submit(JOB)
    assert background.wait(60)
    assert events.counters() == {"not compiled again": 1}
    assert "FX graph entry fkey was not verified: JSONDecodeError" in caplog.text


def test_other_process_that_cannot_be_started_is_told(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    background.submit(JOB)
    assert background.wait(60)
    assert "FX graph entry fkey was not verified: FileNotFoundError" in caplog.text
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(("limit", "value"), [("_MOST", 2), ("_MOST_BYTES", 2 * JOB.size)])
def test_what_is_too_much_is_said_once_and_not_verified(held, monkeypatch, caplog, limit, value):
    monkeypatch.setattr(background, limit, value)
    for _ in range(5):
        background.submit(JOB)
    assert events.counters() == {"not compiled again": 3}
    assert len(caplog.messages) == 1 and "too many others wait to be compiled again" in caplog.text
    assert not background.wait(0.1)
    held.set()
    assert background.wait(60)
    background.submit(JOB)
    assert background.wait(60)
    assert events.counters() == {"not compiled again": 3, "compiled alike again": 3}


def test_forked_child_has_a_queue_of_its_own(held):
    """Even one that was forked while this process had hold of the queue."""
    background.submit(JOB)
    with background._state.now.lock:
        pid = os.fork()
        if pid == 0:
            held.set()
            is_empty = background.wait(1)
            events._state.reset()
            background.submit(JOB)
            is_done = background.wait(60)
            os._exit(not (is_empty and is_done and events.counters() == {"compiled alike again": 1}))
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert not background.wait(0.1), "this process's own still waits"


def test_program_ends_at_once_though_a_forked_child_lives_on(compiles, monkeypatch):
    """The child holds all that this process had open, such as the pipe whose end tells of this process's."""
    compiles("time.sleep(1000)")
    monkeypatch.setattr(background, "_GRACE", 10)
    background.submit(JOB)
    assert until(lambda: background._state.now.process is not None)
    process = background._state.now.process
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    try:
        background._end()
        assert process.returncode == os.EX_TEMPFAIL
        assert background.wait(60)
        assert events.counters() == {}
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_operators_of_the_main_file_are_told(monkeypatch, module):
    """The second is its name in what multiprocessing has spawned."""
    definition = SimpleNamespace(_init_fn=SimpleNamespace(__module__=module))
    monkeypatch.setitem(sys.modules, "torch._library.custom_ops", SimpleNamespace(OPDEFS={"my::op": definition}))
    with pytest.raises(graphs.UnverifiableError, match="the program itself defines the operator my::op"):
        list(graphs._defining(None, "my::op"))
