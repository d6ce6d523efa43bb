"""A holder is killed, frozen or failed by the kernel at each of its system calls: whoever comes then compiles or finds."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from faults.store import traced
from faults.store.traced import needs_strace

from safecache import single_flight
from safecache.fs import holders
from safecache.places import metadata
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from single_flight import flyer

pytestmark = [needs_strace, pytest.mark.timeout(1800 if os.environ.get("SAFECACHE_TEST_EXHAUSTIVE") else 300)]


# What calls are failed with: any, or those of these names, which alone can fail so.
CAN = {"EIO": "", "ENOSPC": "mkdir|open|write|truncate|rename|link", "EMFILE": "open|fcntl|dup"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One for all, which is emptied each time: beside it lie the keys of what is traced."""
    base = tmp_path_factory.mktemp("traced")
    (base / "cache").mkdir()
    return base / "cache"


@pytest.fixture(scope="module")
def calls(root):
    """Those of a compile; all of them with SAFECACHE_TEST_EXHAUSTIVE=1, else the first and the last of each name."""
    traced.run("compile", root)  # the first one makes keys
    traced.prepare(root, None)
    found = [call for call in traced.calls("compile", root) if call.name != "write"]  # of what it prints
    if os.environ.get("SAFECACHE_TEST_EXHAUSTIVE"):
        return found
    return sorted({*{call.name: call for call in found}.values(), *{call.name: call for call in found[::-1]}.values()})


def injected(root, call, what):
    """What is compiled under strace, with that done at this call, in a cache of its own."""
    traced.prepare(root, None)
    single_flight._state.reset()
    options = ["-e", f"trace={call.name}", "-e", f"inject={call.name}:{what}:when={call.number}"]
    # Else it stops at all calls, which takes four times as long. A signal is not injected so.
    options += ["--seccomp-bpf"] if what.startswith("error=") else []
    return traced.run("compile", root, *options)


def comes_next(root) -> str:
    """What becomes of a process that needs the same now: "holds" the lease, has "found" it, or compiles "alone"."""
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        flight = single_flight.wait_or_lead(Ref(Kind.FX_ENTRY, flyer.KEY, str(root)))
        if flight is None:
            return "alone"
        if flyer.published(root).exists():
            flight.mark_found()
            return "found"
        return "holds"


def leases(root):
    folder = Path(root, metadata.FOLDER, metadata.LEASES)
    return os.listdir(folder) if folder.exists() else []


def test_killed_holder_is_succeeded_at_once(root, calls):
    seen = set()
    for call in calls:
        assert injected(root, call, "signal=KILL").returncode != 0, call
        was_published = flyer.published(root).exists()
        seen.add(comes_next(root))
        assert comes_next(root) == ("found" if was_published else "holds"), call
        assert leases(root) == [], call
    assert seen == {"found", "holds"}


@pytest.mark.parametrize("error", CAN)
def test_holder_whose_calls_fail_compiles_and_keeps_nobody(root, calls, error):
    """What fails of the compile itself fails as without a lease."""
    for call in (each for each in calls if re.search(CAN[error], each.name)):
        done = injected(root, call, f"error={error}")
        assert done.returncode == 0 and not done.stderr, (call, done.stderr)
        assert "(INJECTED)" in (root.parent / "trace").read_text(), call
        compiled = flyer.published(root).exists()
        assert compiled == (done.stdout == "compiled\n"), (call, done.stdout)
        assert comes_next(root) == ("found" if compiled else "holds"), call
        assert leases(root) == [], call


def test_frozen_holder_is_given_up_and_harms_nobody_when_it_goes_on(root, calls, monkeypatch):
    monkeypatch.setattr(holders, "STALLED", 0.5)
    monkeypatch.setattr(holders, "_INTERVAL", 0.1)
    seen = set()
    for call in calls:
        done = []
        (root.parent / "trace").unlink()
        thread = threading.Thread(target=lambda: done.append(injected(root, call, "signal=STOP")))  # noqa: B023
        thread.start()
        frozen = stopped(thread, root)
        single_flight._state.reset()
        seen.add(comes_next(root))
        os.kill(frozen, signal.SIGCONT)
        thread.join(60)
        assert done and done[0].returncode == 0 and done[0].stdout in ("compiled\n", "found\n"), (call, done)
        assert comes_next(root) == "found" and leases(root) == [], call
    assert seen == {"alone", "found", "holds"}


def stopped(thread, root) -> int:
    """The process that strace says to have been stopped."""
    trace = root.parent / "trace"
    while thread.is_alive():
        for line in trace.read_text().splitlines() if trace.exists() else ():
            if "stopped by SIGSTOP" in line:
                return int(line.split()[0])
        time.sleep(0.01)
    raise AssertionError("it was never stopped")
