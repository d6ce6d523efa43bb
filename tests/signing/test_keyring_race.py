"""However many processes start at once, one makes the key and all of them use it."""

from __future__ import annotations

import fcntl
import os

import pytest
from conftest import python

from safecache.signing import keyring

# In an interpreter of its own: pytest-timeout's thread makes a fork in this one a warning.
HUNDRED = """
import errno, os, traceback
import filelock  # once, for all of them
from safecache.signing import keyring

def no_link(*args, **kwargs):
    raise OSError(errno.EPERM, "Operation not permitted")

if os.environ["HARD_LINKS"] == "no":
    os.link = no_link
go, gun = os.pipe()
answers, answer = os.pipe()

def child():
    os.close(gun)
    os.read(go, 1)  # until the parent closes the other end
    ring = keyring.current()
    os.write(answer, f"{ring.signing.id.hex() if ring.signing else ring.problem} {ring.fresh}\\n".encode())

for _ in range(100):
    if os.fork() == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
os.close(gun)
os.close(answer)
with os.fdopen(answers) as file:
    print(file.read())
"""


@pytest.mark.parametrize(
    ("hard_links", "left"),
    [
        pytest.param("yes", ["sealing.key"], id="hard-links"),
        pytest.param("no", ["sealing.key", "sealing.key.lock"], id="no-hard-links"),
    ],
)
def test_hundred_processes_started_at_once_share_one_key(tmp_path, hard_links, left):
    done = python(HUNDRED, env={"XDG_CONFIG_HOME": str(tmp_path), "HARD_LINKS": hard_links})
    answers = done.stdout.split("\n")[:100]
    assert len(answers) == 100 and done.stderr == "", done.stderr
    keys, fresh = zip(*(line.split() for line in answers), strict=True)
    assert set(keys) == {keyring.load(None, str(tmp_path)).signing.id.hex()}
    assert sorted(fresh) == ["False"] * 99 + ["True"]
    assert set(os.listdir(tmp_path / "safecache")) - set(left) == set()


@pytest.mark.parametrize("hard_links", [True, False], ids=["hard-links", "no-hard-links"])
def test_process_that_comes_second_takes_the_key_of_the_first(tmp_path, monkeypatch, hard_links):
    """The other one publishes between our look and our own attempt."""
    others = []
    real_fsync = os.fsync

    def fsync(descriptor):
        monkeypatch.setattr(os, "fsync", real_fsync)
        others.append(keyring.load(None, str(tmp_path)))

    def no_link(source, destination, **how):  # which filelock tries when it is imported
        raise PermissionError(1, "Operation not permitted")

    if not hard_links:
        monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(os, "fsync", fsync)
    ours = keyring.load(None, str(tmp_path))
    assert [other.fresh for other in others] == [True]
    assert ours[:3] == (others[0].signing, False, "")
    assert not list((tmp_path / "safecache").glob(".*"))


def test_key_is_put_in_place_under_a_lock_where_rename_would_overwrite(tmp_path, monkeypatch):
    real_rename = os.rename
    lock_was_free = []

    def no_link(source, destination, **how):  # which filelock tries when it is imported
        raise PermissionError(1, "Operation not permitted")

    def rename(source, destination):
        with open(f"{destination}.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock_was_free.append(True)
            except BlockingIOError:
                lock_was_free.append(False)
        real_rename(source, destination)

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(os, "rename", rename)
    assert keyring.load(None, str(tmp_path)).fresh
    assert lock_was_free == [False]
