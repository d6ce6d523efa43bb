"""Services with jobs that stand in for compiles, and what is left of them."""

from __future__ import annotations

import importlib.util
import os
import time
import uuid
from pathlib import Path

import pytest

from safecache.isolation.client import Service

# What is sent to a worker, and made there, is Triton's.
_OF_TRITON = ["attempts", "encoding", "encoding_corpus", "job", "kernel_script"]
collect_ignore = [] if importlib.util.find_spec("triton") else [f"test_{name}.py" for name in _OF_TRITON]
MEMORY = 1 << 30
LONG = 120.0


class Runner:
    """A service, a directory for its jobs, and a mark on every process that it starts."""

    def __init__(self, directory: Path, mark: str, *arguments, **named) -> None:
        self.service = Service(*arguments, **named)
        self.directory = directory
        self.mark = mark

    def __call__(self, what, *, timeout=LONG, memory=MEMORY, **arguments):
        return self.service.run({"what": what, **arguments}, str(self.directory), timeout=timeout, memory=memory)

    def reply(self, what, **arguments):
        """What a job replied that is to reply."""
        outcome = self(what, **arguments)
        assert outcome.ending is None, outcome
        return outcome.reply

    def ending(self, what, **arguments):
        """How a job ended that is not to reply."""
        outcome = self(what, **arguments)
        assert outcome.reply is None, outcome
        return outcome.ending

    @property
    def server(self) -> int:
        """Its pid."""
        return self.reply("surroundings")["server"]


def processes(mark: str) -> list[int]:
    """Those that live and were started with this variable in their environment, this process excepted."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_dead = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
            if not is_dead and mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def eventually(is_so, seconds=30.0):
    """Whether it comes to be so, however busy the machine is."""
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def mark(monkeypatch):
    mark = f"isolation-{uuid.uuid4().hex}"
    monkeypatch.setenv("MARK_OF_A_TEST", mark)
    return mark


@pytest.fixture
def service(tmp_path, mark, monkeypatch):
    """Makes services, by default of two workers; their processes are gone at the end of the test, or it fails."""
    for name in [name for name in os.environ if name.startswith("SAFECACHE")]:
        monkeypatch.delenv(name)
    made = []

    def make(jobs="isolation.stand_in", imports=(), *, size=2, **named):
        directory = tmp_path / f"jobs-{len(made)}"
        directory.mkdir()
        made.append(Runner(directory, mark, jobs, imports, size=size, **named))
        return made[-1]

    yield make
    for runner in made:
        runner.service.close()
    assert eventually(lambda: processes(mark) == []), processes(mark)


@pytest.fixture
def run(service):
    """One service of two workers."""
    return service()
