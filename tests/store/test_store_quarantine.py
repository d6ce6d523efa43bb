"""Quarantine: what is moved away is kept with a note of why, and a quarantine that cannot be is no error."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from safecache.fs import filesystem
from safecache.reporting.kinds import Reason
from safecache.store import entry_files
from safecache.store.quarantine import is_its_name, is_unchanged, open_quarantine


@pytest.fixture
def entry(tmp_path):
    path = tmp_path / "aotautograd" / "key" / "entry"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    return path


def quarantine(entry, reason=Reason.DAMAGED, found=None):
    return entry_files.quarantine(str(entry), str(entry.parents[2]), reason, found)


def test_entry_is_moved_with_a_note_of_why(entry):
    moved = Path(quarantine(entry, Reason.BAD_SEAL))
    assert not entry.exists()
    assert moved.read_bytes() == b"damaged"
    assert moved.parent == entry.parents[2] / ".safecache" / "quarantine"
    note = json.loads(Path(f"{moved}.json").read_text())
    assert note.keys() == {"from", "reason", "time"}
    assert (note["from"], note["reason"]) == (str(entry), "bad seal")


def test_quarantine_that_never_was_is_not_made_by_looking_into_it(tmp_path):
    with pytest.raises(FileNotFoundError), open_quarantine(str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []


def test_name_tells_what_was_moved_there(entry):
    moved = os.path.basename(quarantine(entry))
    assert is_its_name(moved) and not is_its_name(f"{moved}.json") and not is_its_name("somebody's")


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o700), (0o022, 0o755), (0o002, 0o775)], ids="{:04o}".format)
def test_quarantine_is_open_to_whom_the_umask_lets_in(entry, umask, mode):
    """Or the second user of a shared cache could move nothing away."""
    before = os.umask(umask)
    try:
        moved = Path(quarantine(entry))
    finally:
        os.umask(before)
    made = (moved.parent, moved.parent.parent)
    assert [stat.S_IMODE(directory.stat().st_mode) for directory in made] == [mode, mode]


def test_quarantine_that_is_there_keeps_its_mode_and_belongs_to_the_group_of_a_setgid_cache(entry):
    root = entry.parents[2]
    os.chown(root, -1, os.getegid())
    root.chmod(0o2755)
    moved = Path(quarantine(entry))
    assert moved.parent.stat().st_mode & stat.S_ISGID
    moved.parent.chmod(0o711)
    entry.write_bytes(b"another")
    assert Path(quarantine(entry)).parent == moved.parent
    assert stat.S_IMODE(moved.parent.stat().st_mode) == 0o711


def test_entries_of_one_name_are_all_kept(entry):
    moved = []
    for number in range(5):
        entry.write_bytes(b"%d" % number)
        moved.append(Path(quarantine(entry)))
    assert [path.read_bytes() for path in moved] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(list(moved[0].parent.iterdir())) == 10


@pytest.mark.parametrize(
    "name", ["n" * 255, pytest.param(os.fsdecode(b"\xff\xfe"), id="not-utf-8"), pytest.param('a\nb"c', id="odd")]
)
def test_entry_of_any_name_is_moved(entry, name):
    entry = entry.rename(entry.with_name(name))
    moved = quarantine(entry)
    assert not os.path.lexists(entry)
    assert json.loads(Path(f"{moved}.json").read_text())["from"] == str(entry)


def test_entry_whose_name_is_long_in_bytes_is_moved(entry):
    entry = entry.rename(entry.with_name("\N{GRINNING FACE}" * 63))
    assert quarantine(entry) is not None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "by-status"])
def test_what_is_no_file_is_moved_too(entry, make, is_known):
    entry.unlink()
    make(entry)
    kind = stat.S_IFMT(entry.lstat().st_mode)
    moved = quarantine(entry, found=entry.lstat() if is_known else None)
    assert not os.path.lexists(entry) and stat.S_IFMT(os.lstat(moved).st_mode) == kind


@pytest.mark.parametrize("operation", ["rename", "mkdir", "open"])
def test_entry_that_cannot_be_moved_stays_and_none_is_returned(entry, monkeypatch, operation):
    def failing(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, operation, failing)
        assert quarantine(entry) is None
    assert entry.read_bytes() == b"damaged" and everything(entry) == [entry.name], "nor is there a note"


def test_what_was_found_is_still_there_until_it_is_another(entry):
    path, status = str(entry), os.lstat(entry)
    assert is_unchanged(path, b"damaged") and is_unchanged(path, status) and is_unchanged(path, None)
    entry.write_bytes(b"another")
    assert not is_unchanged(path, b"damaged") and not is_unchanged(path, status) and is_unchanged(path, None)
    entry.unlink()
    assert not is_unchanged(path, b"damaged") and not is_unchanged(path, status) and not is_unchanged(path, None)


def test_entry_that_is_gone_already_is_none(entry):
    entry.unlink()
    assert quarantine(entry) is None
    assert everything(entry) == [], "nor is there a note"


def test_cache_that_is_gone_is_not_made_again(entry):
    assert entry_files.quarantine(str(entry), str(entry.parents[2] / "gone"), Reason.DAMAGED) is None
    assert entry.exists() and not (entry.parents[2] / "gone").exists()


def test_entry_is_moved_though_its_note_cannot_be_written(entry, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "write", full)
        moved = quarantine(entry)
    assert not entry.exists() and Path(moved).read_bytes() == b"damaged"


def everything(entry):
    return sorted(path.name for path in entry.parents[2].rglob("*") if path.is_file())


def move_what_is_damaged(entry):
    return entry_files.quarantine(str(entry), str(entry.parents[2]), Reason.DAMAGED, b"damaged")


def test_entry_that_is_still_what_was_found_is_moved(entry):
    assert Path(move_what_is_damaged(entry)).read_bytes() == b"damaged" and not entry.exists()


def save_just_before_it_is_moved(monkeypatch, entry):
    rename = filesystem.rename

    def save_first(*args, **kwargs):
        monkeypatch.setattr(filesystem, "rename", rename)
        entry_files.replace(str(entry), b"good")
        rename(*args, **kwargs)

    monkeypatch.setattr(filesystem, "rename", save_first)


def test_good_entry_that_was_saved_there_meanwhile_is_not_even_moved(entry, monkeypatch):
    entry_files.replace(str(entry), b"good")
    monkeypatch.setattr(filesystem, "rename", None)
    assert move_what_is_damaged(entry) is None
    assert entry.read_bytes() == b"good" and everything(entry) == ["entry"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_good_entry_that_was_saved_there_in_the_last_moment_is_put_back(entry, monkeypatch, hard_links):
    def no_link(*args, **kwargs):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    save_just_before_it_is_moved(monkeypatch, entry)
    if not hard_links:
        monkeypatch.setattr(filesystem, "link", no_link)
    assert move_what_is_damaged(entry) is None
    assert entry.read_bytes() == b"good" and everything(entry) == ["entry"]


def test_entry_saved_after_that_is_not_put_over(entry, monkeypatch):
    """It was moved away by its name, and yet another one has been saved before it can be put back."""
    link = filesystem.link

    def save_another(*args, **kwargs):
        entry_files.replace(str(entry), b"better")
        link(*args, **kwargs)

    save_just_before_it_is_moved(monkeypatch, entry)
    monkeypatch.setattr(filesystem, "link", save_another)
    assert move_what_is_damaged(entry) is None
    assert entry.read_bytes() == b"better" and everything(entry) == ["entry"]


@pytest.mark.parametrize("found", [b"damaged", b""])
def test_fifo_in_place_of_what_was_found_stays(entry, found):
    entry.unlink()
    os.mkfifo(entry)
    assert entry_files.quarantine(str(entry), str(entry.parents[2]), Reason.DAMAGED, found) is None
    assert stat.S_ISFIFO(entry.lstat().st_mode)


def test_link_in_place_of_what_was_found_stays_though_it_leads_to_the_same(entry):
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to("elsewhere")
    assert move_what_is_damaged(entry) is None and entry.is_symlink()


class TestByStatus:
    """What is large or no file is told by what the kernel says of it, not by its content."""

    @pytest.fixture
    def found(self, entry):
        return entry.lstat()

    def move(self, entry, found):
        return entry_files.quarantine(str(entry), str(entry.parents[2]), Reason.NOT_A_FILE, found)

    def test_entry_that_is_still_what_was_found_is_moved(self, entry, found):
        assert Path(self.move(entry, found)).read_bytes() == b"damaged" and not entry.exists()

    def test_another_file_of_the_same_content_stays(self, entry, found):
        entry_files.replace(str(entry), b"damaged")
        assert self.move(entry, found) is None and everything(entry) == ["entry"]

    def test_file_that_was_written_since_stays_even_if_its_times_say_otherwise(self, entry, found):
        entry.write_bytes(b"good ok")
        os.utime(entry, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert self.move(entry, found) is None and entry.read_bytes() == b"good ok"

    def test_directory_that_was_made_there_meanwhile_stays(self, entry, found):
        entry.unlink()
        entry.mkdir()
        assert self.move(entry, found) is None and entry.is_dir() and everything(entry) == []

    @pytest.mark.parametrize("kind", ["file", "directory"])
    def test_what_was_put_there_in_the_last_moment_is_put_back(self, entry, found, monkeypatch, kind):
        rename = filesystem.rename

        def replace_first(*args, **kwargs):
            monkeypatch.setattr(filesystem, "rename", rename)
            entry.unlink()
            if kind == "file":
                entry.write_bytes(b"damaged")
            else:
                entry.mkdir()
            rename(*args, **kwargs)

        monkeypatch.setattr(filesystem, "rename", replace_first)
        assert self.move(entry, found) is None
        assert entry.is_dir() if kind == "directory" else entry.read_bytes() == b"damaged"
        assert everything(entry) == ([] if kind == "directory" else ["entry"])

    def test_descriptors_are_closed(self, entry, found):
        before = os.listdir("/proc/self/fd")
        self.move(entry, found)
        self.move(entry, found)
        assert os.listdir("/proc/self/fd") == before
