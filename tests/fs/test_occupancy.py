"""The private directory of a process that was killed is removed by the next that needs one, and no other is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE, needs_root, python

from safecache.fs import mounts, private_directory

LASTING = "from safecache.fs import private_directory; place = private_directory.create_lasting(lambda path: True); "


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path):
    """The directory that they all lie in."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(private_directory.tempfile, "tempdir", str(directory))
    monkeypatch.setattr(private_directory, "_OTHER_PARENTS", ())
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@contextlib.contextmanager
def running(code, *, with_place=LASTING):
    """A process that has run this, and what it has printed; it is killed at the end."""
    command = [sys.executable, "-c", f"import os, time; {with_place}{code}; time.sleep(1000)"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    ) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def killed(code="print(place, flush=True)"):
    """What a process leaves behind."""
    with running(code) as (_, place):
        assert os.path.isdir(place)
    return place


def reaped(place):
    """Whether the next process that needs a directory removes this one, and only this one."""
    with running("print(place, flush=True)") as (_, other):
        assert os.path.isdir(other) and other != place
        return not os.path.exists(place)


def test_directory_of_a_killed_process_is_removed_with_what_is_in_it(temporary):
    place = killed("open(place + '/file', 'w'); print(place, flush=True)")
    assert sorted(os.listdir(place)) == [".safecache-live", "file"] and reaped(place)


def test_directory_of_a_living_process_stays():
    with running("print(place, flush=True)") as (_, place):
        assert not reaped(place)
    assert reaped(place)


def test_directory_of_a_process_that_ends_is_gone_and_its_lock_with_it(temporary):
    done = python(f"{LASTING} print(place)")
    assert done.returncode == 0 and done.stdout.strip() and list(temporary.iterdir()) == [], done
    with private_directory.create_temporary() as directory:
        assert directory in private_directory._held
    assert directory not in private_directory._held


def test_forked_child_keeps_the_directory_of_its_killed_parent():
    """Such as a worker of multiprocessing."""
    with running("child = os.fork(); child and print(place, child, flush=True)") as (parent, said):
        place, child = said.split()
        parent.kill()
        parent.wait()
        try:
            assert not reaped(place)
        finally:
            os.kill(int(child), signal.SIGKILL)
    while not reaped(place):  # nobody here is its parent, and could wait for its end otherwise
        pass


def named(temporary):
    return temporary / f"safecache-live-{'0' * 16}"


@pytest.mark.parametrize("record", [None, "", "1 2", "another's"])
def test_directory_that_was_made_by_somebody_else_stays(temporary, record):
    """A directory of this user's own, which somebody has given such a name; or a copy of one that was made here."""
    mine = named(temporary)
    mine.mkdir(0o700)
    (mine / "thesis").write_text("the only copy")
    if record is not None:
        other = killed()
        content = Path(other, ".safecache-live").read_text() if record == "another's" else record
        (mine / ".safecache-live").write_text(content)
        assert reaped(other)
    assert not reaped(str(mine)) and (mine / "thesis").read_text() == "the only copy"


@needs_root
def test_record_that_is_a_link_proves_nothing(temporary, tmp_path):
    mine = named(temporary)
    mine.mkdir(0o700)
    status = mine.stat()
    (tmp_path / "record").write_text(f"{status.st_dev} {status.st_ino}")
    (mine / ".safecache-live").symlink_to(tmp_path / "record")
    assert not reaped(str(mine))


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o700])
def test_directory_is_removed_only_where_nobody_can_put_another_in_its_place(temporary, mode):
    place = killed()
    temporary.chmod(mode)
    private_directory.reap(str(temporary))
    assert os.path.exists(place) is (mode == 0o777)


def test_directory_that_others_can_enter_stays(temporary):
    place = killed()
    os.chmod(place, 0o755)
    assert not reaped(place)


STANDIN = "from safecache.settings import config; from safecache.tiers import fallback; place = fallback.begin('/nowhere/cache'); "
CHILD = "from safecache.tiers import fallback; import time; print(fallback.find_original({!r}), flush=True); time.sleep(1000)"


@contextlib.contextmanager
def inheriting(place):
    """A process that one with a stand-in has started, as that of compile workers; what it takes it for."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": place, "_SAFECACHE_REDIRECTED": f"{place}\n/nowhere/cache"}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD.format(place)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment | {"PYTHONPATH": str(SOURCE)},
    ) as child:
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def test_process_that_was_started_keeps_the_directory_of_its_killed_parent():
    with running("print(place, flush=True)", with_place=STANDIN) as (parent, place), inheriting(place) as original:
        assert original == "/nowhere/cache"
        parent.kill()
        parent.wait()
        assert not reaped(place)
    assert reaped(place)


def test_process_that_is_started_after_its_directory_was_removed_does_without():
    with running("print(place, flush=True)", with_place=STANDIN) as (_, place):
        pass
    assert reaped(place)
    with inheriting(place) as original:
        assert original == "None"


def test_directory_that_is_being_removed_is_not_joined():
    place = killed()
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert not private_directory.join(place)
    os.close(descriptor)
    assert private_directory.join(place) and private_directory.join(place)
    private_directory.leave(place)
    assert reaped(place)


@pytest.mark.parametrize("why", ["no locks", "no descriptors", "over a network"])
def test_directory_that_cannot_be_locked_is_never_taken_for_one_left_behind(temporary, monkeypatch, why):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        if why == "over a network":
            patch.setattr(mounts, "is_over_a_network", lambda path: True)
        elif why == "no locks":
            patch.setattr(fcntl, "flock", fail)
        else:
            patch.setattr(os, "open", fail)
        place = private_directory._make_directory()
    private_directory.reap(str(temporary))
    assert os.path.isdir(place) and os.path.dirname(place) == str(temporary)


@pytest.mark.parametrize("kind", ["file", "link", "other name"])
def test_what_is_none_of_ours_stays(temporary, tmp_path, kind):
    path = temporary / ("safecache-live-0123456789abcdef" if kind != "other name" else "safecache-01234567")
    (tmp_path / "of others").mkdir()
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(tmp_path / "of others")
    else:
        path.mkdir()
    private_directory.reap(str(temporary))
    assert os.path.lexists(path) and (tmp_path / "of others").is_dir()


@needs_root
def test_directory_of_another_user_stays(temporary):
    place = killed()
    os.chown(place, 12345, 12345)
    assert not reaped(place)


def test_directory_that_was_exchanged_before_it_was_locked_is_not_joined(tmp_path, monkeypatch):
    place, flock = killed(), fcntl.flock

    def exchange_first(*args):
        os.rename(place, tmp_path / "removed")
        os.mkdir(place)
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", exchange_first)
    before = os.listdir("/proc/self/fd")
    assert not private_directory.join(place) and os.listdir("/proc/self/fd") == before
