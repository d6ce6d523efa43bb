"""A temporary file lives as long as its writer; what dead ones have left is removed, in time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time

import pytest
from conftest import SOURCE
from helpers.caches import at_each_rename

from safecache.fs import filesystem, folders, temporaries
from safecache.fs.temporaries import Temporary
from safecache.store import entry_files

HOUR = 3600.0
DAY = 24 * HOUR


def reap(directory):
    with folders.open_subdirectory(str(directory)) as folder:
        return temporaries.reap(folder)


@pytest.fixture
def temporary(tmp_path):
    """One that this process is about to write, and where it lies."""
    with folders.open_subdirectory(str(tmp_path)) as folder:
        temporary = Temporary(folder, 0o666)
        yield temporary, tmp_path / temporary.name


def age(path, seconds):
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


@pytest.fixture
def living(tmp_path):
    """A temporary file of a process that is about to write it."""
    code = f"""
from safecache.fs import folders
from safecache.fs.temporaries import Temporary
with folders.open_subdirectory({str(tmp_path)!r}) as folder:
    temporary = Temporary(folder, 0o666)
    print({str(tmp_path)!r} + "/" + temporary.name)
    input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    path = process.stdout.readline().strip()
    yield process, path
    process.kill()
    process.communicate()


def test_file_of_a_living_writer_stays_however_old_it_is(tmp_path, living):
    _, path = living
    age(path, 30 * DAY)
    assert reap(tmp_path) == 0 and os.path.exists(path)


def test_file_of_a_killed_writer_is_removed_after_an_hour(tmp_path, living):
    process, path = living
    process.kill()
    process.communicate()
    age(path, 0.5 * HOUR)
    reap(tmp_path)
    assert os.path.exists(path)
    age(path, 2 * HOUR)
    reap(tmp_path)
    assert not os.path.exists(path)


def test_over_a_network_nothing_is_locked_and_only_age_counts(tmp_path, monkeypatch, request):
    monkeypatch.setattr(folders.mounts, "is_over_a_network", lambda path: True)
    monkeypatch.setattr(filesystem, "flock", None)
    temporary, path = request.getfixturevalue("temporary")
    age(path, 2 * HOUR)
    reap(tmp_path)
    assert path.exists()
    age(path, 2 * DAY)
    reap(tmp_path)
    assert not path.exists()
    temporary.close()


def test_size_of_what_was_removed_is_told(tmp_path, temporary):
    temporary, path = temporary
    temporary.write([b"content"], durably=False)
    temporary.close()
    age(path, 2 * HOUR)
    assert reap(tmp_path) == len(b"content")


@pytest.mark.parametrize(("old", "stays"), [(2 * HOUR, True), (2 * DAY, False)])
def test_file_of_stock_torch_which_has_no_lock_stays_for_a_day(tmp_path, old, stays):
    path = tmp_path / ".123.456.tmp"
    path.touch()
    age(path, old)
    reap(tmp_path)
    assert path.exists() == stays


@pytest.mark.parametrize("name", ["entry", ".hidden", ".0123456789abcdef.tmp.json", ".0123456789ABCDEF.tmp", ".1.tmp"])
def test_nothing_else_is_removed(tmp_path, name):
    path = tmp_path / name
    path.touch()
    age(path, 30 * DAY)
    reap(tmp_path)
    assert path.exists()


@pytest.mark.timeout(20, method="signal")  # would hang for ever
def test_what_is_no_file_stays(tmp_path):
    os.mkfifo(tmp_path / ".0123456789abcdef.tmp")
    (tmp_path / ".1.2.tmp").mkdir()
    os.symlink("nowhere", tmp_path / ".3.4.tmp")
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    assert reap(tmp_path) == 0 and len(list(tmp_path.iterdir())) == 3


def test_first_publishing_in_a_directory_removes_what_is_left_there(tmp_path):
    left = tmp_path / ".0123456789abcdef.tmp"
    left.touch()
    age(left, 2 * HOUR)
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_file_is_locked_until_it_has_its_name(tmp_path, monkeypatch):
    """Or somebody could take it for a dead writer's between its close and its rename."""
    tried = []

    def reap_first(source, rename):
        age(source, 2 * HOUR)
        tried.append(reap(tmp_path))
        rename()

    at_each_rename(monkeypatch, reap_first)
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    assert tried == [0] and (tmp_path / "entry").read_bytes() == b"content"


def make_link(path, target):
    path.symlink_to(target)


def make_hard_link(path, target):
    os.link(target, path)


@pytest.mark.parametrize("plant", [make_link, make_hard_link])
def test_what_lies_under_its_name_is_not_written_to(tmp_path, monkeypatch, plant):
    """Somebody would have to guess the name, of 64 random bits."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    monkeypatch.setattr(temporaries.secrets, "token_hex", lambda size: "0" * 16)
    plant(tmp_path / f".{'0' * 16}.tmp", victim)
    with pytest.raises(FileExistsError):
        entry_files.replace(str(tmp_path / "entry"), b"content")
    assert victim.read_bytes() == b"mine" and sorted(os.listdir(tmp_path)) == [f".{'0' * 16}.tmp", "victim"]


@pytest.mark.timeout(20, method="signal")  # would hang for ever
def test_lock_that_another_has_is_not_waited_for(tmp_path, monkeypatch):
    flock, others = filesystem.flock, []

    def lock_first(descriptor, operation):
        others.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
        fcntl.flock(others[0], fcntl.LOCK_EX)
        flock(descriptor, operation)

    monkeypatch.setattr(filesystem, "flock", lock_first)
    entry_files.replace(str(tmp_path / "entry"), b"content")
    assert (tmp_path / "entry").read_bytes() == b"content" and len(others) == 1
    os.close(others[0])


def test_only_the_first_publishing_in_a_directory_looks_for_what_is_left(tmp_path, monkeypatch):
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    monkeypatch.setattr(filesystem, "listdir", None)
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))


@pytest.mark.timeout(20, method="signal")  # would hang for ever
@pytest.mark.parametrize("what", ["fifo", "link"])
def test_what_is_put_in_place_of_a_dead_writers_file_is_not_waited_for_nor_followed(tmp_path, monkeypatch, what):
    left = tmp_path / ".0123456789abcdef.tmp"
    left.touch()
    age(left, 2 * HOUR)
    status = left.lstat()
    left.unlink()
    os.mkfifo(tmp_path / "target")
    os.mkfifo(left) if what == "fifo" else left.symlink_to("target")
    opened, open_ = [], filesystem.open

    def note(path, flags, *args, **named):
        descriptor = open_(path, flags, *args, **named)
        if not flags & os.O_DIRECTORY:
            opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return descriptor

    monkeypatch.setattr(filesystem, "lstat", lambda path, **named: status)
    monkeypatch.setattr(filesystem, "open", note)
    reap(tmp_path)
    assert opened == ([str(left)] if what == "fifo" else []) and os.path.exists(tmp_path / "target")
