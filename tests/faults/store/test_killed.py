"""Who is killed, whatever it has changed by then, leaves the old file or the new one, and nothing that stays."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.store import traced
from faults.store.traced import NEW, OLD, needs_strace
from safecache.fs import temporaries
from safecache.reporting.kinds import Reason
from safecache.store import entry_files


def killed(action, root, there):
    """Kill it after each system call that may change the disk, the cache prepared anew each time.

    Yields what was there, and the call that it was killed at. At the others it leaves what it leaves at the one before.
    """
    traced.prepare(root, there)
    calls = traced.calls(action, root)
    for call in [calls[0], *(after for before, after in itertools.pairwise(calls) if before.changes), calls[-1]]:
        entry = traced.prepare(root, there)
        done = traced.run(
            action, root, "-e", f"trace={call.name}", "-e", f"inject={call.name}:signal=KILL:when={call.number}"
        )
        assert done.returncode != 0, call
        yield entry, call


@needs_strace
@pytest.mark.parametrize("there", [OLD, None], ids=["replaced", "first"])
@pytest.mark.parametrize("action", ["put", "write"])
def test_writer_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path, action, there):
    root = tmp_path / "cache"
    seen = []
    for entry, call in killed(action, root, there):
        found = entry.read_bytes() if entry.exists() else None
        assert found in (there, NEW), call
        left = list(root.rglob(".*.tmp"))
        assert len(left) <= 1, call
        for path in left:
            os.utime(path, (time.time() - 7200,) * 2)
        temporaries._reaped.reset()
        entry_files.publish(str(entry), NEW, str(root))
        assert entry.read_bytes() == NEW and os.listdir(entry.parent) == ["entry"], call
        seen.append((found, len(left)))
    assert {(there, 0), (there, 1), (NEW, 0)} == set(seen)


@needs_strace
def test_reader_that_is_killed_leaves_all_as_it_was(tmp_path):
    root = tmp_path / "cache"
    for entry, call in killed("get", root, OLD):
        assert [path for path in root.rglob("*") if path.is_file()] == [entry], call
        assert entry.read_bytes() == OLD, call


@needs_strace
def test_who_is_killed_while_it_moves_a_file_away_leaves_it_here_or_there_with_a_note(tmp_path):
    root = tmp_path / "cache"
    seen = set()
    for entry, call in killed("quarantine", root, OLD):
        place = root / ".safecache" / "quarantine"
        moved = [path for path in place.glob("entry.*") if path.suffix != ".json"]
        assert [path.read_bytes() for path in [*moved, *filter(Path.exists, [entry])]] == [OLD], call
        for path in moved:
            assert json.loads(path.with_name(path.name + ".json").read_text())["reason"] == "damaged", call
        assert moved or entry_files.quarantine(str(entry), str(root), Reason.DAMAGED), call
        seen.add(bool(moved))
    assert seen == {False, True}


def test_processes_killed_at_random_leave_nothing_wrong():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill.py")), "--kills", "60"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
