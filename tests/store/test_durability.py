"""What is waited for, where, and in which order."""

from __future__ import annotations

import errno
import os

import pytest

from safecache.fs import filesystem, mounts
from safecache.fs.mounts import Mount
from safecache.store import entry_files


@pytest.fixture
def calls(monkeypatch):
    """What a publishing does, in order: the syncs, by the kind of what is synced, and the rename."""
    seen = []
    sync, rename = filesystem.fsync, filesystem.rename

    def note_sync(descriptor):
        seen.append("sync directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "sync file")
        sync(descriptor)

    def note_rename(*names, **directories):
        seen.append("rename")
        rename(*names, **directories)

    monkeypatch.setattr(filesystem, "fsync", note_sync)
    monkeypatch.setattr(filesystem, "rename", note_rename)
    return seen


@pytest.fixture
def on(monkeypatch):
    """Have the cache lie on such a file system."""

    def on(file_system):
        monkeypatch.setattr(mounts._network_devices, "now", {})
        monkeypatch.setattr(mounts, "find_mount", lambda path: file_system and Mount("/", file_system, ()))

    return on


WAITING, NOT = ["sync file", "rename", "sync directory"], ["rename"]


@pytest.mark.parametrize(
    ("chosen", "file_system", "expected"),
    [
        ("always", "ext4", WAITING),
        ("never", "nfs4", NOT),
        ("auto", "ext4", NOT),
        ("auto", "tmpfs", NOT),
        ("auto", "overlay", NOT),
        ("auto", None, NOT),
        *(("auto", name, WAITING) for name in ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "fuse.s3fs", "ceph")),
    ],
)
def test_publishing_waits_as_it_is_set(tmp_path, settings, calls, on, chosen, file_system, expected):
    settings(SAFECACHE_FSYNC=chosen)
    on(file_system)
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    assert calls == expected and (tmp_path / "entry").read_bytes() == b"content"


@pytest.mark.parametrize(("chosen", "synced"), [("always", ["cache", "ke", "key"]), ("never", [])])
def test_directories_up_to_the_cache_are_waited_for_or_none(tmp_path, settings, monkeypatch, chosen, synced):
    """Not only those made now: who made the others may be killed before he has waited for them."""
    settings(SAFECACHE_FSYNC=chosen)
    entry = tmp_path / "cache" / "ke" / "key" / "entry"
    entry.parent.mkdir(parents=True)
    seen, sync = [], filesystem.fsync

    def note(descriptor):
        seen.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(filesystem, "fsync", note)
    entry_files.publish(str(entry), b"content", str(tmp_path / "cache"))
    assert sorted(name for name in seen if not name.endswith(".tmp")) == synced


def test_directory_that_may_be_written_and_not_read_is_not_waited_for(tmp_path, settings, monkeypatch):
    settings(SAFECACHE_FSYNC="always")
    open_, refused = filesystem.open, []

    def refuse(path, flags, *args, **named):
        if flags & os.O_DIRECTORY and not flags & os.O_PATH:
            refused.append(os.readlink(f"/proc/self/fd/{named['dir_fd']}"))
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_(path, flags, *args, **named)

    monkeypatch.setattr(filesystem, "open", refuse)
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    assert refused[0] == str(tmp_path) and (tmp_path / "entry").read_bytes() == b"content"


def test_all_is_written_before_it_is_waited_for(tmp_path, settings, monkeypatch):
    settings(SAFECACHE_FSYNC="always")
    sizes = []
    sync = filesystem.fsync
    monkeypatch.setattr(filesystem, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size) or sync(fd))
    entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    assert sizes[0] == len(b"content")


@pytest.mark.parametrize(("error", "raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_directory_that_cannot_be_synced(tmp_path, settings, monkeypatch, error, raised):
    settings(SAFECACHE_FSYNC="always")
    sync = filesystem.fsync

    def fail(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(error, os.strerror(error))
        sync(descriptor)

    monkeypatch.setattr(filesystem, "fsync", fail)
    if raised:
        with pytest.raises(OSError, match=os.strerror(error)):
            entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    else:
        entry_files.publish(str(tmp_path / "entry"), b"content", str(tmp_path))
    assert (tmp_path / "entry").read_bytes() == b"content"


def test_failed_sync_of_a_file_leaves_what_was_there(tmp_path, settings, monkeypatch):
    settings(SAFECACHE_FSYNC="always")
    entry = tmp_path / "entry"
    entry.write_bytes(b"old")

    def fail(descriptor):
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(filesystem, "fsync", fail)
    with pytest.raises(OSError):
        entry_files.publish(str(entry), b"new", str(tmp_path))
    assert entry.read_bytes() == b"old" and os.listdir(tmp_path) == ["entry"]
