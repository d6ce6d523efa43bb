"""A file system that cannot do what publishing and locking rely on: its system calls fail, or grant what they must not."""

from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace(1)")


def failing(machine, *injections):
    """How to run a command of whose system calls these, on our probes alone, have another outcome."""
    calls = [option for injection in injections for option in ("-e", f"inject={injection}")]
    return ["strace", "-f", "-qq", "-o", str(machine.tmp / "trace"), *calls]


def probe(machine, *injections):
    machine.tmp.joinpath("trace").touch()
    done = machine.run(
        "--json", "--no-import", within=failing(machine, *injections), env={"PYTHONDONTWRITEBYTECODE": "1"}
    )
    machine.tmp.joinpath("trace").unlink()
    return done


def report(machine, *injections):
    from doctor.conftest import Report

    found = Report(probe(machine, *injections))
    assert not list(machine.base.rglob(".safecache-probe-*"))
    return found


def test_locks_that_are_not_supported(machine):
    found = report(machine, "flock:error=ENOLCK").one("no-locks", "warning")
    assert "No locks available" in found["evidence"]


def test_locks_that_are_granted_twice(machine):
    """As by NFS with local_lock, or an object store."""
    found = report(machine, "flock:retval=0").one("no-locks", "warning")
    assert "granted to two at once" in found["evidence"]


def test_files_that_cannot_be_renamed(machine):
    found = report(machine, "rename,renameat,renameat2:error=ENOSYS").one("no-rename", "error")
    assert "Function not implemented" in found["evidence"] and "DIR" in found["remedy"]


def test_files_that_are_not_synced(machine):
    assert "Input/output error" in report(machine, "fsync:error=EIO").one("no-sync", "error")["evidence"]


def test_file_system_without_hard_links_will_do(machine):
    assert (
        "Operation not permitted" in report(machine, "link,linkat:error=EPERM").one("no-hard-links", "info")["evidence"]
    )
