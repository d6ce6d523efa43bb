"""System calls of each name fail, in real processes: the kernel, and not Python, says so."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from faults.store import traced
from faults.store.faulty import ERRORS
from faults.store.traced import NEW, OLD, needs_strace

pytestmark = needs_strace
# All of them with SAFECACHE_TEST_EXHAUSTIVE=1; two in every run.
CHOSEN = ERRORS if os.environ.get("SAFECACHE_TEST_EXHAUSTIVE") else ["EIO", "EINTR"]


def chosen(calls):
    """The first and the last call of each name; all of them where all errors are."""
    ends = {*{call.name: call for call in calls}.values(), *{call.name: call for call in reversed(calls)}.values()}
    return calls if CHOSEN is ERRORS else sorted(ends)


def failing(action, root, error):
    """Have some of its system calls fail once; yields the entry, what the process said, and the call."""
    traced.prepare(root, OLD)
    for call in chosen(traced.calls(action, root)):
        entry = traced.prepare(root, OLD)
        inject = f"inject={call.name}:error={error}:when={call.number}"
        done = traced.run(action, root, "-e", f"trace={call.name}", "-e", inject)
        assert done.returncode == 0, (call, done.stderr)
        yield entry, done.stdout.strip(), call


@pytest.mark.parametrize("error", CHOSEN)
@pytest.mark.parametrize("action", ["put", "write"])
def test_put_raises_that_error_or_does_its_work(tmp_path, action, error):
    said_so = 0
    for entry, said, call in failing(action, tmp_path / "cache", error):
        assert said in ("", str(getattr(errno, error))), call
        assert entry.read_bytes() == NEW or (said and entry.read_bytes() == OLD), call
        # Nothing is left, though a close that fails is not tried again: its descriptor is gone all the same.
        assert os.listdir(entry.parent) == ["entry"], call
        said_so += bool(said)
    assert (said_so > 0) == (error not in ("EINTR", "EBUSY", "ESTALE"))


@pytest.mark.parametrize("error", CHOSEN)
def test_get_does_its_work_or_raises_that_error(tmp_path, error):
    for entry, said, call in failing("get", tmp_path / "cache", error):
        passes = error in ("EINTR", "EBUSY", "ESTALE", "EIO", "EMFILE", "ENOMEM")
        assert said == "" or (not passes and said == str(getattr(errno, error))), call
        assert entry.read_bytes() == OLD, call


@pytest.mark.parametrize("error", CHOSEN)
def test_quarantine_moves_the_file_or_leaves_it(tmp_path, error):
    for entry, said, call in failing("quarantine", tmp_path / "cache", error):
        assert entry.exists() == (said == "None"), call
        assert entry.exists() or Path(said).read_bytes() == OLD, call
