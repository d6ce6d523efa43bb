"""Publishing: whole or not at all, with nothing left behind whatever fails."""

from __future__ import annotations

import errno
import os
import shutil
import threading

import pytest

from safecache.fs import filesystem
from safecache.store import entry_files


@pytest.fixture
def entry(tmp_path):
    """Where an entry goes, in a cache that does not exist yet."""
    return tmp_path / "cache" / "aotautograd" / "key" / "entry"


def publish(entry, content=b"content"):
    entry_files.publish(str(entry), content, str(entry.parents[2]))


def names(entry):
    return sorted(os.listdir(entry.parent))


def fail(monkeypatch, operation, error):
    """Have this call fail; a write after one byte, as when the disk gets full meanwhile."""
    real = getattr(filesystem, operation)

    def failing(*args, **kwargs):
        if operation == "write":
            real(args[0], args[1][:1])
        elif operation == "close":
            real(*args)
        raise error

    monkeypatch.setattr(filesystem, operation, failing)


def test_entry_is_published_whole_and_its_directories_made(entry):
    content = os.urandom(1_000_000)
    publish(entry, content)
    assert entry.read_bytes() == content
    assert names(entry) == ["entry"]


def test_entry_is_readable_as_the_umask_says(entry):
    publish(entry)
    assert entry.stat().st_mode & 0o777 == 0o644


def test_entry_that_is_there_is_replaced(entry):
    publish(entry, b"old")
    publish(entry, b"new")
    assert entry.read_bytes() == b"new"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["open", "write", "close", "rename"])
def test_failed_publishing_raises_and_leaves_what_was_there(entry, monkeypatch, operation, error):
    publish(entry, b"old")
    with monkeypatch.context() as patch:
        fail(patch, operation, OSError(error, os.strerror(error)))
        with pytest.raises(OSError) as caught:
            publish(entry, b"new content")
    assert caught.value.errno == error
    assert names(entry) == ["entry"] and entry.read_bytes() == b"old"


def test_interrupted_publishing_leaves_nothing(entry, monkeypatch):
    with monkeypatch.context() as patch:
        fail(patch, "write", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            publish(entry)
    assert names(entry) == []


def test_directory_in_place_of_the_entry_is_set_aside(entry):
    entry.mkdir(parents=True)
    publish(entry)
    assert names(entry) == ["entry"] and entry.read_bytes() == b"content"


def clear_cache_when_directory_is_made(monkeypatch, entry, times):
    real, left = filesystem.mkdir, [times]

    def mkdir(name, **directory):
        real(name, **directory)
        if name == entry.parent.name and left[0]:
            left[0] -= 1
            shutil.rmtree(entry.parents[2])

    monkeypatch.setattr(filesystem, "mkdir", mkdir)


@pytest.mark.parametrize("times", [1, 2])
def test_entry_is_published_though_another_process_clears_the_cache(entry, monkeypatch, times):
    clear_cache_when_directory_is_made(monkeypatch, entry, times)
    publish(entry)
    assert entry.read_bytes() == b"content" and names(entry) == ["entry"]


def test_cache_that_is_cleared_again_and_again_is_an_error(entry, monkeypatch):
    clear_cache_when_directory_is_made(monkeypatch, entry, 1000)
    with pytest.raises(FileNotFoundError):
        publish(entry)


def test_entry_without_a_directory_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        entry_files.publish("entry", b"content", "")
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_directory_is_set_aside(entry):
    entry.parent.parent.mkdir(parents=True)
    entry.parent.write_bytes(b"in the way")
    publish(entry)
    assert entry.read_bytes() == b"content"
    quarantine = entry.parents[2] / ".safecache" / "quarantine"
    kept, note = sorted(quarantine.iterdir())
    assert kept.read_bytes() == b"in the way" and '"reason": "not a file"' in note.read_text()


def test_directory_that_another_process_makes_in_place_of_a_file_stays(entry, monkeypatch):
    """Both have found the file, and the other was faster."""
    entry.parent.parent.mkdir(parents=True)
    entry.parent.write_bytes(b"in the way")
    quarantine = entry_files.quarantine

    def publish_first(*args):
        monkeypatch.setattr(entry_files, "quarantine", quarantine)
        publish(entry.with_name("of the other"), b"of the other")
        return quarantine(*args)

    monkeypatch.setattr(entry_files, "quarantine", publish_first)
    publish(entry)
    assert names(entry) == ["entry", "of the other"]
    aside = entry.parents[2] / ".safecache" / "quarantine"
    assert [path.read_bytes() for path in aside.glob("*.????????")] == [b"in the way"]


def test_dangling_link_in_place_of_the_directory_is_set_aside(entry):
    entry.parent.parent.mkdir(parents=True)
    entry.parent.symlink_to("nowhere")
    publish(entry)
    assert not entry.parent.is_symlink() and entry.read_bytes() == b"content"


@pytest.mark.parametrize("back", [False, True], ids=["away", "and back"])
def test_directory_that_a_sweep_moves_away_for_a_moment_is_not_in_the_way(entry, monkeypatch, back):
    """Seen when it was to be made, not seen when it is asked what it is: another writer's entries are not set aside."""
    publish(entry, b"of another")
    aside, descend, mkdir = entry.parent.with_name("aside"), filesystem.descend, filesystem.mkdir

    def move_away(*way):
        entry.parent.rename(aside)
        monkeypatch.setattr(filesystem, "descend", descend)
        return descend(*way)

    def move_back(name, **directory):
        if aside.exists():
            aside.rename(entry.parent)
        return mkdir(name, **directory)

    monkeypatch.setattr(filesystem, "descend", move_away)
    if back:
        monkeypatch.setattr(filesystem, "mkdir", move_back)
    publish(entry)
    assert entry.read_bytes() == b"content" and not (entry.parents[2] / ".safecache").exists()


def test_entry_published_by_two_threads_is_never_seen_in_part(entry):
    contents = [bytes([letter]) * 300_000 for letter in b"ab"]
    publish(entry, contents[0])
    failures = []

    def publish_often(content):
        try:
            for _ in range(100):
                publish(entry, content)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publish_often, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert entry.read_bytes() in contents
    assert failures == [] and names(entry) == ["entry"]
