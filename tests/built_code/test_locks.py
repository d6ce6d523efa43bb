"""A wait for one of torch's locks is bounded, and after a while a line says who holds it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from filelock import FileLock, Timeout
from helpers.in_process import isolated

from safecache.fs import holders
from safecache.integrations import locks
from safecache.reporting import waits

__all__ = ["isolated"]

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(waits, "NOTICE", 0.2)
    return str(tmp_path / "one.lock")


@pytest.fixture
def hold(path):
    """Has another process hold the lock for so many seconds; its pid."""
    holders = []

    def start(seconds):
        holder = subprocess.Popen([sys.executable, "-c", HOLD, path, str(seconds)], stdout=subprocess.PIPE)
        holders.append(holder)
        holder.stdout.readline()
        return holder.pid

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def enter(lock):
    return locks.enter(lock.__enter__, lock, (), {})


def test_wait_that_ends_in_time_is_reported_with_the_holder(path, hold, caplog):
    pid, lock = hold(1), FileLock(path, timeout=100)
    with enter(lock):
        assert lock.is_locked and lock.timeout == 100
    [line] = caplog.messages
    assert f"waiting for the lock {path}, at most 100 s (SAFECACHE_WAIT): process {pid} (py" in line


def test_wait_for_another_thread_names_no_process(path, caplog):
    held = threading.Event()

    def hold():
        with FileLock(path, thread_local=False):
            held.set()
            time.sleep(1)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with enter(FileLock(path, timeout=100)):
        holder.join()
    assert "(SAFECACHE_WAIT): another thread of this process holds it." in caplog.text


def test_wait_without_end_goes_on_after_the_report(path, hold, caplog):
    hold(1)
    lock = FileLock(path)
    with enter(lock):
        assert lock.timeout == -1
    assert len(caplog.messages) == 1 and "as long as it takes" in caplog.messages[0]


def test_wait_ends_when_its_time_is_over(path, hold, monkeypatch):
    monkeypatch.setenv("SAFECACHE_LOCK_TIMEOUT", "1")
    hold(100)
    lock = FileLock(path, timeout=600)
    with pytest.raises(Timeout):
        enter(lock)
    assert lock.timeout == 1 and not lock.is_locked


def test_lock_that_is_free_is_taken_in_silence(path, caplog):
    with enter(FileLock(path, timeout=100)):
        pass
    assert caplog.messages == []


@pytest.mark.parametrize(
    "listed",
    ["1: FLOCK ADVISORY WRITE 0 {place} 0 EOF\n", "1: -> FLOCK ADVISORY WRITE {pid} {place} 0 EOF\n", "", "1: FLOCK\n"],
    ids=["another container", "waiter", "nobody", "cut"],
)
def test_holder_that_the_kernel_does_not_name_is_waited_for_two_seconds_in_all(
    path, hold, tmp_path, monkeypatch, listed
):
    pid = hold(100)
    status = os.stat(path)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (tmp_path / "locks").write_text(listed.format(place=place, pid=pid))
    monkeypatch.setattr(holders, "_LOCKS", str(tmp_path / "locks"))
    began = time.monotonic()
    for _ in range(8):
        with pytest.raises(Timeout):
            enter(FileLock(path, timeout=600))
    assert waits.UNPROVEN <= time.monotonic() - began < waits.UNPROVEN * 4


def test_waits_in_vain_end_after_one_limit(path, hold, monkeypatch):
    monkeypatch.setenv("SAFECACHE_LOCK_TIMEOUT", "2")
    hold(100)
    began = time.monotonic()
    for _ in range(8):
        with pytest.raises(Timeout):
            enter(FileLock(path, timeout=600))
    assert 2 <= time.monotonic() - began < 8
