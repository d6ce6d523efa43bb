"""Every call of the store fails once, and for ever, with every error: it raises that or does its work, and leaves nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from faults.store.faulty import ERRORS, Plan, descriptors, plans
from safecache.fs import filesystem, folders, opening, temporaries
from safecache.fs.opening import UnusableEntry
from safecache.places import layout
from safecache.reporting.kinds import Reason
from safecache.store import entry_files

OLD, NEW = b"old" * 5000, b"new" * 7000
BY_ERROR = pytest.mark.parametrize("error", ERRORS)
THERE = pytest.mark.parametrize("there", [True, False], ids=["replaced", "first"])


@pytest.fixture
def entry(tmp_path, settings):
    settings(SAFECACHE_FSYNC="always")
    return tmp_path / "cache" / "fxgraph" / "ke" / "key" / "entry"


def root_of(entry):
    return str(entry.parents[3])


def anew(entry, content):
    shutil.rmtree(root_of(entry), ignore_errors=True)
    os.mkdir(root_of(entry))
    if content is not None:
        entry.parent.mkdir(parents=True)
        entry.write_bytes(content)
    temporaries._reaped.reset()


def attempt(calls, plan, action):
    """The OSError that it raised, None if it did its work; in neither case with a file left open."""
    before = descriptors()
    calls.clear(plan)
    try:
        action()
        raised = None
    except (OSError, UnusableEntry) as error:
        raised = error
    failed = calls.failed
    calls.clear()
    assert descriptors() == before, (failed, plan)
    return raised


@THERE
@BY_ERROR
def test_put_raises_or_succeeds_and_leaves_no_part(entry, calls, error, there):
    def put():
        entry_files.publish(str(entry), NEW, root_of(entry))

    anew(entry, OLD if there else None)
    for plan in plans(calls, put, error):
        anew(entry, OLD if there else None)
        raised = attempt(calls, plan, put)
        where = f"{plan}"
        found = entry.read_bytes() if entry.exists() else None
        assert found == NEW or (raised and found == (OLD if there else None)), where
        assert raised is None or raised.errno == plan.error, where
        assert list(Path(root_of(entry)).rglob(".*.tmp")) == [], where
        assert raised is None or plan.every or plan.error not in filesystem.PASSING, where


@BY_ERROR
@pytest.mark.parametrize("name", ["write", "fsync", "dup", "close", "rename"])
def test_what_fails_before_the_file_has_its_name_is_told_and_the_old_one_stays(entry, calls, error, name):
    """Also what the file system only says when the file is synced or closed."""

    def put():
        entry_files.publish(str(entry), NEW, root_of(entry))

    anew(entry, OLD)
    number = next(plan.number for plan in plans(calls, put, error) if calls.names[plan.number] == name)
    anew(entry, OLD)
    raised = attempt(calls, Plan(number, getattr(errno, error), every=True), put)
    assert raised.errno == getattr(errno, error) and entry.read_bytes() == OLD


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EINTR"])
def test_file_whose_sync_failed_is_not_synced_again(entry, calls, error, monkeypatch):
    """It would succeed: the kernel says once that it could not write, and takes the pages for clean from then on."""
    synced, sync = [], filesystem.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(filesystem, "fsync", fsync)

    def put():
        entry_files.publish(str(entry), NEW, root_of(entry))

    anew(entry, OLD)
    number = next(plan.number for plan in plans(calls, put, error) if calls.names[plan.number] == "fsync")
    anew(entry, OLD)
    synced.clear()
    attempt(calls, Plan(number, getattr(errno, error)), put)
    temporary = [path for path in synced if path.endswith(".tmp")]
    assert temporary and len(set(temporary)) == len(temporary)


def read_all(entry):
    """As a lookup does: list, then read what is named."""
    return [
        entry_files.read_unverified_entry(os.path.join(entry.parent, name), listed=True)
        for name in layout.list_entries(entry.parent)
    ]


def copied(entry):
    copy = entry.parents[4] / "copy"
    digest = opening.copy_regular(str(entry), opening.check_regular, str(copy), flags=os.O_NOFOLLOW)
    assert copy.read_bytes() == OLD
    copy.unlink()
    return digest


GETS = {
    "lookup": (lambda entry: read_all(entry), [OLD]),
    "read": (lambda entry: entry_files.read_unverified_entry(str(entry)), OLD),
    "part": (lambda entry: opening.read_regular(str(entry), opening.check_regular, limit=7), OLD[:7]),
    "digest": (
        lambda entry: opening.digest_regular(str(entry), opening.check_regular),
        hashlib.sha256(OLD).digest(),
    ),
    "copy": (copied, hashlib.sha256(OLD).digest()),
}


@BY_ERROR
@pytest.mark.parametrize("how", GETS)
def test_get_raises_or_gives_the_right_bytes(entry, calls, error, how):
    get, expected = GETS[how]
    anew(entry, OLD)
    for plan in plans(calls, lambda: get(entry), error):
        results = []
        raised = attempt(calls, plan, lambda: results.append(get(entry)))  # noqa: B023
        assert results == [expected] or (raised and raised.errno == plan.error), plan
        assert not (entry.parents[4] / "copy").exists(), plan
        assert raised is None or plan.every or plan.error not in filesystem.READING, plan


@BY_ERROR
def test_what_fails_for_ever_is_given_up_soon(entry, calls, waits, error):
    anew(entry, OLD)
    for plan in plans(calls, lambda: read_all(entry), error):
        waits.clear()
        attempt(calls, plan, lambda: read_all(entry))
        assert sum(waits) < 0.5, plan


def test_what_is_listed_and_not_found_is_looked_for_again(entry, calls):
    """NFS keeps for a while that a name was not there, though another host has made it since."""
    anew(entry, OLD)
    lookup = plans(calls, lambda: read_all(entry), "ENOENT")
    numbers = [plan.number for plan in lookup if calls.names[plan.number] in ("lstat", "open")]
    assert numbers
    for number in numbers:
        results = []
        assert attempt(calls, Plan(number, errno.ENOENT), lambda: results.append(read_all(entry))) is None  # noqa: B023
        assert results == [[OLD]]


def test_what_is_not_listed_and_not_found_is_not_waited_for(entry, calls, waits):
    with pytest.raises(FileNotFoundError):
        entry_files.read_unverified_entry(str(entry))
    assert waits == []


def test_error_that_took_long_is_not_waited_for_again(entry, calls, waits, monkeypatch):
    clock = iter(range(0, 1000, 60))
    monkeypatch.setattr(filesystem, "monotonic", lambda: next(clock))
    anew(entry, OLD)
    raised = attempt(calls, Plan(0, errno.EIO, every=True), lambda: entry_files.read_unverified_entry(str(entry)))
    assert raised.errno == errno.EIO and waits == []


def test_put_where_no_directory_can_be_is_not_waited_for(calls, waits):
    with pytest.raises(FileNotFoundError):
        entry_files.publish("/proc/nowhere/key/entry", NEW, "/proc/nowhere")
    assert sum(waits) == 0


def quarantined(entry):
    place = Path(root_of(entry), ".safecache", "quarantine")
    return sorted(place.iterdir()) if place.exists() else []


@BY_ERROR
def test_quarantine_never_raises_and_the_file_is_here_or_there(entry, calls, error):
    def move():
        return entry_files.quarantine(str(entry), root_of(entry), Reason.DAMAGED)

    anew(entry, OLD)
    for plan in plans(calls, move, error):
        anew(entry, OLD)
        results = []
        assert attempt(calls, plan, lambda: results.append(move())) is None  # noqa: B023
        (moved,) = results
        if moved is None:
            assert entry.read_bytes() == OLD, plan
            assert [path for path in quarantined(entry) if path.suffix != ".json"] == [], plan
        else:
            assert Path(moved).read_bytes() == OLD and not entry.exists(), plan
            for note in set(quarantined(entry)) - {Path(moved)}:
                assert plan.every or json.loads(note.read_text())["reason"] == "damaged", plan
        at_renaming = calls_name(calls, move, entry, plan) == "rename"
        assert not at_renaming or plan.every or plan.error not in filesystem.PASSING or moved, plan


def calls_name(calls, action, entry, plan):
    anew(entry, OLD)
    calls.clear()
    action()
    return calls.names[plan.number]


@BY_ERROR
def test_reaping_removes_no_file_of_a_living_writer_whatever_fails(entry, calls, error):
    def reap():
        with folders.open_subdirectory(str(entry.parent)) as folder:
            return temporaries.reap(folder)

    def prepare():
        anew(entry, OLD)
        dead.write_bytes(b"dead")
        os.utime(dead, (time.time() - 7200,) * 2)

    dead = entry.parent / ".0123456789abcdef.tmp"
    prepare()
    for plan in plans(calls, reap, error):
        prepare()
        with folders.open_subdirectory(str(entry.parent)) as folder:
            living = temporaries.Temporary(folder, 0o666)
            path = entry.with_name(living.name)
            os.utime(path, (time.time() - 7200,) * 2)
            attempt(calls, plan, reap)
            assert path.exists() and entry.read_bytes() == OLD, plan
            living.close()
        path.unlink()


@pytest.mark.parametrize("part", [1, 4096, 6999])
def test_short_writes_are_carried_on(entry, monkeypatch, part):
    write = filesystem.write
    monkeypatch.setattr(filesystem, "write", lambda descriptor, content: write(descriptor, content[:part]))
    anew(entry, OLD)
    entry_files.publish(str(entry), NEW, root_of(entry))
    assert entry.read_bytes() == NEW


def test_file_system_that_writes_nothing_and_says_so_is_an_error(entry, calls, monkeypatch):
    monkeypatch.setattr(filesystem, "write", lambda descriptor, content: 0)
    anew(entry, OLD)
    with pytest.raises(OSError, match="nothing was written"):
        entry_files.publish(str(entry), NEW, root_of(entry))
    assert entry.read_bytes() == OLD and os.listdir(entry.parent) == ["entry"]


@pytest.mark.parametrize("part", [1, 4096])
def test_short_reads_are_carried_on(entry, monkeypatch, part):
    read = filesystem.read
    monkeypatch.setattr(filesystem, "read", lambda descriptor, size: read(descriptor, min(size, part)))
    anew(entry, OLD)
    assert [get(entry) for get, _ in GETS.values()] == [expected for _, expected in GETS.values()]
