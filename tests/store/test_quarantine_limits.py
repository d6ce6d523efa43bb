"""The quarantine holds the latest and no more than is of use, follows no link, and is out of the caches' sight."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from safecache.fs import filesystem
from safecache.places import layout
from safecache.reporting.kinds import Reason
from safecache.store import entry_files, quarantine


@pytest.fixture
def cache(tmp_path):
    """A cache, with an entry, a kernel and a library in it."""
    cache = tmp_path / "cache"
    for name in ("aotautograd/key/entry", "fxgraph/ke/key/entry", f"triton/0/{'A' * 52}/kernel.so", "ab/library.so"):
        path = cache / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"damaged")
    return cache


def put_away(cache, number, content=b"damaged"):
    path = cache / f"damaged-{number:03}"
    path.write_bytes(content)
    moved = entry_files.quarantine(str(path), str(cache), Reason.DAMAGED)
    return Path(moved)


def kept(cache):
    """The numbers of what lies there, each with its note, and nothing besides."""
    place = cache / ".safecache" / "quarantine"
    names = [name for name in os.listdir(place) if not name.endswith(".json")]
    assert sorted(os.listdir(place)) == sorted(names + [f"{name}.json" for name in names])
    return sorted(int(name.split(".")[0].removeprefix("damaged-")) for name in names)


def test_of_many_the_latest_are_kept_with_their_notes(cache, monkeypatch):
    monkeypatch.setattr(quarantine, "_MOST_FILES", 3)
    for number in range(7):
        put_away(cache, number)
        assert kept(cache) == list(range(max(0, number - 2), number + 1))


def test_of_large_ones_the_latest_that_fit_are_kept(cache, monkeypatch):
    monkeypatch.setattr(quarantine, "_MOST_BYTES", 3000)
    for number in range(5):
        put_away(cache, number, b"x" * 1200)
    assert kept(cache) == [3, 4]


def test_the_newest_is_kept_whatever_its_size(cache, monkeypatch):
    monkeypatch.setattr(quarantine, "_MOST_BYTES", 3000)
    put_away(cache, 1)
    assert put_away(cache, 2, b"x" * 100_000).stat().st_size == 100_000
    assert kept(cache) == [2]
    put_away(cache, 3)
    assert kept(cache) == [3]


def test_directory_counts_with_all_that_it_holds_and_goes_with_it(cache, monkeypatch):
    monkeypatch.setattr(quarantine, "_MOST_BYTES", 30_000)
    path = cache / "damaged-001"
    (path / "below").mkdir(parents=True)
    (path / "below" / "file").write_bytes(b"x" * 40_000)
    entry_files.quarantine(str(path), str(cache), Reason.NOT_A_FILE)
    assert kept(cache) == [1]
    put_away(cache, 2)
    assert kept(cache) == [2]


def test_link_there_is_removed_and_what_it_leads_to_stays(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(quarantine, "_MOST_FILES", 1)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").write_bytes(b"mine")
    for number, target in enumerate([tmp_path / "home", tmp_path / "home" / "file"]):
        path = cache / f"damaged-{number:03}"
        path.symlink_to(target)
        entry_files.quarantine(str(path), str(cache), Reason.NOT_A_FILE)
    put_away(cache, 2)
    assert kept(cache) == [2] and (tmp_path / "home" / "file").read_bytes() == b"mine"


def test_file_of_another_name_is_not_removed(cache, monkeypatch):
    monkeypatch.setattr(quarantine, "_MOST_FILES", 1)
    put_away(cache, 0)
    place = cache / ".safecache" / "quarantine"
    others = ["thesis", "thesis.json", "a.0123456", "a.0123456g", ".01234567"]
    for name in others:
        (place / name).write_bytes(b"mine")
        os.utime(place / name, (0, 0))
    put_away(cache, 1)
    assert {name for name in os.listdir(place) if not name.startswith("damaged")} == set(others)


def test_notes_that_lost_their_file_are_removed_like_it(cache, monkeypatch):
    """As when a process was killed between the two."""
    monkeypatch.setattr(quarantine, "_MOST_FILES", 2)
    put_away(cache, 0).unlink()
    for number in (1, 2):
        put_away(cache, number)
    assert kept(cache) == [1, 2]


@pytest.mark.parametrize("planted", [".safecache", ".safecache/quarantine"])
@pytest.mark.parametrize("target", ["home", "nowhere"])
def test_nothing_is_moved_where_a_link_leads(cache, tmp_path, planted, target):
    """Whoever may write to the cache could have files with names and content of his choice moved into a home."""
    (tmp_path / "home").mkdir()
    link = cache / planted
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / target)
    entry = cache / "aotautograd" / "key" / "entry"
    assert entry_files.quarantine(str(entry), str(cache), Reason.DAMAGED) is None
    assert entry.exists() and list(tmp_path.rglob("home/*")) == []


def test_cache_that_is_a_link_itself_has_its_quarantine_where_it_leads(cache, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(cache)
    moved = entry_files.quarantine(str(link / "aotautograd" / "key" / "entry"), str(link), Reason.DAMAGED)
    assert Path(moved).read_bytes() == b"damaged" and kept_names(cache) == [Path(moved).name]


def kept_names(cache):
    return [name for name in os.listdir(cache / ".safecache" / "quarantine") if not name.endswith(".json")]


def test_what_was_moved_there_is_no_entry_and_no_code_of_the_cache_any_more(cache):
    root = str(cache)
    for location in [*layout.walk(root), *layout.walk_code(root)]:
        assert entry_files.quarantine(location.path, root, Reason.DAMAGED) is not None
    assert len(kept_names(cache)) == 4
    assert [*layout.walk(root), *layout.walk_code(root)] == []
    assert all(layout.locate(str(path)) is None for path in cache.rglob(".safecache/quarantine/*"))


def test_note_is_there_before_the_file(cache, monkeypatch):
    seen, rename = [], filesystem.rename

    def look(source, name, *, src_dir_fd, dst_dir_fd):
        seen.append(json.loads(Path(f"/proc/self/fd/{dst_dir_fd}/{name}.json").read_text())["reason"])
        rename(source, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(filesystem, "rename", look)
    put_away(cache, 0)
    assert seen == ["damaged"]


def test_file_that_was_moved_though_the_server_said_otherwise_counts_as_moved(cache, monkeypatch):
    """NFS may carry a request out twice, and report what came of the second time."""
    rename = filesystem.rename

    def twice(source, name, **where):
        rename(source, name, **where)
        rename(source, name, **where)

    monkeypatch.setattr(filesystem, "rename", twice)
    moved = put_away(cache, 0)
    assert moved.read_bytes() == b"damaged" and moved.with_name(moved.name + ".json").exists()


@pytest.mark.parametrize("make", [os.link, os.symlink], ids=lambda make: make.__name__)
def test_note_is_not_written_into_what_lies_under_its_name(cache, tmp_path, monkeypatch, make):
    """Somebody would have to guess the name, of 32 random bits."""
    put_away(cache, 0)
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    monkeypatch.setattr(quarantine.secrets, "token_hex", lambda size: "0" * 8)
    make(victim, cache / ".safecache" / "quarantine" / f"damaged-001.{'0' * 8}.json")
    assert put_away(cache, 1).read_bytes() == b"damaged" and victim.read_bytes() == b"mine"


def test_note_that_could_not_be_written_whole_is_not_there(cache, monkeypatch):
    write = filesystem.write

    def full(descriptor, content):
        if len(content) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:-10])

    monkeypatch.setattr(filesystem, "write", full)
    moved = put_away(cache, 0)
    assert moved.read_bytes() == b"damaged" and os.listdir(moved.parent) == [moved.name]


def test_no_more_is_removed_than_must_be(cache, monkeypatch):
    """Exactly as many, and as large, as is allowed."""
    monkeypatch.setattr(quarantine, "_MOST_FILES", 2)
    sizes = [
        sum(path.stat().st_size for path in (moved, moved.with_name(moved.name + ".json")))
        for moved in (put_away(cache, 0), put_away(cache, 1))
    ]
    monkeypatch.setattr(quarantine, "_MOST_BYTES", sizes[1] + sizes[0])
    assert kept(cache) == [0, 1]
    put_away(cache, 2)
    assert kept(cache) == [1, 2]
