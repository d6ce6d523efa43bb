"""What safecache ships for the tests of others."""

from __future__ import annotations

import errno
import os

import pytest

from safecache import testing
from safecache.store import entry_files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "cache" / "aotautograd" / "akey" / "entry"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"content" * 100)
    return path


@pytest.mark.parametrize("how", testing.DAMAGES)
def test_damage_changes_the_file_in_place(path, how):
    before, inode = path.read_bytes(), path.stat().st_ino
    testing.damage(path, how)
    assert path.read_bytes() != before and path.stat().st_ino == inode


def test_entries_are_those_of_the_cache(path):
    assert testing.entries(path.parents[2]) == [str(path)]


def test_call_fails_below_the_directory_and_nowhere_else(tmp_path, path):
    other = tmp_path / "other" / "entry"
    with testing.failing("rename", "ENOSPC", tmp_path / "cache"):
        with pytest.raises(OSError) as caught:
            entry_files.publish(str(path), b"new", str(tmp_path / "cache"))
        with pytest.raises(OSError):
            os.rename(path, path.with_name("moved"))
        entry_files.publish(str(other), b"new", str(tmp_path / "other"))
    assert caught.value.errno == errno.ENOSPC and path.read_bytes() != b"new" and other.read_bytes() == b"new"
    entry_files.publish(str(path), b"new", str(tmp_path / "cache"))
    assert path.read_bytes() == b"new"


def test_call_fails_as_often_as_it_is_to(tmp_path, path):
    with testing.failing("fsync", "EIO", tmp_path, times=1), open(path, "rb") as file:
        with pytest.raises(OSError):
            os.fsync(file.fileno())
        os.fsync(file.fileno())


def test_caches_and_keys_lie_below_the_directory(tmp_path):
    places = {name: path for name, path in testing.isolated(tmp_path).items() if str(tmp_path) in path}
    assert len(places) == len(set(places.values())) == 3
