"""Listing and reading: only regular files of this user are read, and nothing is waited for or followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from conftest import needs_root

from safecache.fs import filesystem, opening
from safecache.places import layout
from safecache.reporting.kinds import Reason
from safecache.store import entry_files

# A FIFO that is opened without O_NONBLOCK is waited for; the signal ends that test only.
pytestmark = pytest.mark.timeout(20, method="signal")


def make_link(path):
    target = path.with_name("target")
    target.write_bytes(b"content")
    path.symlink_to(target)


NOT_FILES = {
    "FIFO": os.mkfifo,
    "directory": Path.mkdir,
    "symbolic link": make_link,
    "dangling symbolic link": lambda path: path.symlink_to("nowhere"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}


def test_entries_are_listed_sorted_and_without_dotfiles(tmp_path):
    for name in ("c", "a", ".hidden", "b", ".0123.tmp"):
        (tmp_path / name).touch()
    assert layout.list_entries(str(tmp_path)) == ["a", "b", "c"]


def test_missing_directory_lists_no_entries(tmp_path):
    assert layout.list_entries(str(tmp_path / "absent")) == []


def test_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        layout.list_entries(str(tmp_path / "file"))


@pytest.mark.parametrize("content", [b"", b"entry", bytes(3_000_000)], ids=["empty", "small", "large"])
def test_regular_file_is_read_whole(tmp_path, content):
    (tmp_path / "entry").write_bytes(content)
    assert entry_files.read_unverified_entry(str(tmp_path / "entry")) == content


def test_entry_that_is_gone_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        entry_files.read_unverified_entry(str(tmp_path / "absent"))


@pytest.mark.parametrize("what", NOT_FILES, ids=lambda what: what.replace(" ", "-"))
def test_what_is_not_a_file_is_refused_at_once(tmp_path, what):
    NOT_FILES[what](tmp_path / "entry")
    with pytest.raises(opening.UnusableEntry) as caught:
        entry_files.read_unverified_entry(str(tmp_path / "entry"))
    assert caught.value.reason is Reason.NOT_A_FILE
    assert caught.value.detail == f"a {what.removeprefix('dangling ')}"


def test_device_is_refused_without_opening_it(monkeypatch):
    """Opening a device can have effects, such as rewinding a tape."""

    def opened(*args, **kwargs):
        raise AssertionError("opened")

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "open", opened)
        with pytest.raises(opening.UnusableEntry) as caught:
            entry_files.read_unverified_entry("/dev/null")
    assert (caught.value.reason, caught.value.detail) == (Reason.NOT_A_FILE, "a device")


@needs_root
def test_file_of_another_user_is_refused(tmp_path):
    (tmp_path / "entry").write_bytes(b"entry")
    os.chown(tmp_path / "entry", 54321, -1)
    with pytest.raises(opening.UnusableEntry) as caught:
        entry_files.read_unverified_entry(str(tmp_path / "entry"))
    assert (caught.value.reason, caught.value.detail) == (Reason.FOREIGN_OWNER, "of uid 54321")


@needs_root
def test_file_of_another_user_is_read_where_the_cache_is_shared(tmp_path, settings):
    settings(SAFECACHE_SHARED=1)
    (tmp_path / "entry").write_bytes(b"entry")
    os.chown(tmp_path / "entry", 54321, -1)
    assert entry_files.read_unverified_entry(str(tmp_path / "entry")) == b"entry"


@pytest.mark.parametrize("what", NOT_FILES, ids=lambda what: what.replace(" ", "-"))
def test_what_is_not_a_file_is_refused_in_a_shared_cache_too(tmp_path, settings, what):
    settings(SAFECACHE_SHARED=1)
    NOT_FILES[what](tmp_path / "entry")
    with pytest.raises(opening.UnusableEntry):
        entry_files.read_unverified_entry(str(tmp_path / "entry"))


@pytest.fixture
def swapped(tmp_path, monkeypatch):
    """An entry's path whose first look finds a regular file of ours: what lies there by then has been put later."""
    decoy = tmp_path / "decoy"
    decoy.touch()
    status = decoy.lstat()
    monkeypatch.setattr(filesystem, "lstat", lambda path: status)
    return tmp_path / "entry"


def test_fifo_swapped_in_after_the_first_look_is_refused_at_once(swapped):
    os.mkfifo(swapped)
    with pytest.raises(opening.UnusableEntry, match="FIFO"):
        entry_files.read_unverified_entry(str(swapped))


def test_link_swapped_in_after_the_first_look_is_not_followed(swapped):
    make_link(swapped)
    with pytest.raises(OSError, match="symbolic links"):
        entry_files.read_unverified_entry(str(swapped))


@needs_root
def test_file_of_another_user_swapped_in_after_the_first_look_is_refused(swapped):
    swapped.write_bytes(b"entry")
    os.chown(swapped, 54321, -1)
    with pytest.raises(opening.UnusableEntry, match="54321"):
        entry_files.read_unverified_entry(str(swapped))
