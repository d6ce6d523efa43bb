"""Who can write to a cache puts links to another directory in the place of its own: nothing there is touched.

Each of these had a victim's own process remove, or change, the victim's files elsewhere.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import time
from contextlib import suppress

import pytest
from crashes.test_crash_reports import facts
from helpers.caches import DAY, at_each_rename
from helpers.key_cases import MAC

from safecache.doctor import directories
from safecache.errors import EntryRefusedError
from safecache.explain import key_records
from safecache.explain.key_records import KeyRecord
from safecache.fs import filesystem, folders
from safecache.isolation import crashes
from safecache.places import layout
from safecache.ports import Published
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.store import entry_files
from safecache.tiers import directory_faults
from safecache.upkeep import audit, eviction, inventory, limits
from safecache.upkeep.eviction import Limits

KEY = "a" + "b" * 51


@pytest.fixture
def documents(tmp_path):
    """What is the user's, and none of the cache's, old enough to be pruned, and named so that it could be."""
    home = tmp_path / "home"
    for number in range(120):
        directory = home / f"{number:016x}"
        directory.mkdir(parents=True)
        (directory / "letter").write_text("dear")
        (home / f"a{'b' * 50}{'abcdefghijklmnopqrstuvwxyz234567'[number % 32]}.json.gz").write_text("dear")
        os.utime(directory, (0, 0))
    return home


@pytest.fixture
def intact(documents):
    def state():
        return {path: path.lstat()[:4] + (path.stat().st_mtime_ns,) for path in documents.rglob("*")}

    before = state()
    yield
    assert state() == before


def link(path, to):
    """Have a link there, whatever was there."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.before"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(to)


def test_crash_report_is_not_written_through_a_link_and_prunes_nothing_there(tmp_path, documents, intact):
    root = tmp_path / "cache"
    link(root / ".safecache" / "crashes", documents)
    with pytest.raises(OSError, match="Not a directory"):
        crashes.write_report(*facts(str(root), "ab" * 32))


def test_what_only_has_the_name_of_a_report_is_not_pruned(tmp_path, monkeypatch):
    monkeypatch.setattr(crashes, "_MOST_REPORTS", 1)
    other = tmp_path / ".safecache" / "crashes" / ("1" * 16)
    other.mkdir(parents=True)
    (other / "letter").write_text("dear")
    for hash in ("ab" * 32, "cd" * 32):
        crashes.write_report(*facts(str(tmp_path), hash))
    assert (other / "letter").exists() and len(crashes.list_reports(str(tmp_path))) == 1


@pytest.mark.parametrize("folder", [".safecache", ".safecache/trash"])
def test_trash_that_becomes_a_link_during_a_sweep_leads_nowhere(cache, documents, intact, monkeypatch, folder):
    """After the inventory, where what a sweep that was killed has left was found."""
    left = cache.root / ".safecache" / "trash" / f"{1:016x}"
    left.mkdir(parents=True)
    cache.aot("a", 30 * DAY)
    target = documents if folder.endswith("trash") else documents.parent
    if target is documents.parent:
        (target / "trash").symlink_to(documents)
    take = eviction.take_inventory

    def swapped(root):
        found = take(root)
        link(cache.root / folder, target)
        return found

    monkeypatch.setattr(eviction, "take_inventory", swapped)
    eviction.sweep(str(cache.root), Limits(age=DAY), now=cache.now)


def test_directory_that_becomes_a_link_as_its_entry_is_moved_away_leads_nowhere(cache, documents, intact, monkeypatch):
    entry = cache.aot("a", 30 * DAY)
    (documents / entry.parent.name).mkdir()
    shutil.rmtree(documents / entry.parent.name)

    def swap(source, rename):
        link(cache.root / "aotautograd", documents)
        rename()

    at_each_rename(monkeypatch, swap)
    eviction.sweep(str(cache.root), Limits(age=DAY), now=cache.now)


def test_records_of_keys_are_not_pruned_through_a_link(tmp_path, documents, intact, monkeypatch):
    root = tmp_path / "cache"
    root.mkdir()
    record = KeyRecord(Kind.AOT_ENTRY, KEY, "model.f", 0.0, ())
    key_records.remember(record, str(root))
    (place,) = (root / ".safecache" / "keys" / "aot").iterdir()
    publish = entry_files.publish

    def swapped(path, content, top):
        publish(path, content, top)
        link(place, documents)

    monkeypatch.setattr(entry_files, "publish", swapped)
    key_records.remember(record._replace(made=time.time()), str(root))


def test_what_only_has_the_name_of_a_record_of_a_key_is_not_pruned(tmp_path):
    names = [f"a{'b' * 49}{one}{two}" for one in "abcdef" for two in "abcdef"]
    for key in names:
        key_records.remember(KeyRecord(Kind.AOT_ENTRY, key, "model.f", 0.0, ()), str(tmp_path))
    (place,) = (tmp_path / ".safecache" / "keys" / "aot").iterdir()
    assert len(list(place.iterdir())) == 32
    other = place / f"a{'c' * 51}.json.gz"
    other.write_text("dear")
    os.utime(other, (0, 0))
    key_records.remember(KeyRecord(Kind.AOT_ENTRY, "a" + "d" * 51, "model.f", 0.0, ()), str(tmp_path))
    assert other.exists()


def test_signed_entry_is_not_removed_through_a_link(tmp_path, documents, intact, monkeypatch):
    root, content = tmp_path / "cache", pickle.dumps(1)
    entry = root / "aotautograd" / "akey" / layout.name_entry(content)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(content)
    assert audit.adopt(str(root)).sealed == 1
    (entry,) = entry.parent.iterdir()
    (documents / entry.name).write_text("dear")
    inside = {path: path.read_text() for path in documents.iterdir() if path.is_file()}
    publish = entry_files.publish

    def swapped(path, content, top):
        publish(path, content, top)
        link(entry.parent, documents)

    monkeypatch.setattr(entry_files, "publish", swapped)
    location = layout.Location(str(entry), next(layout.walk(str(root))).kind, "akey")
    with pytest.raises(OSError, match="Not a directory"):
        audit.replace_entry(location, entry.read_bytes(), str(root), MAC, {})
    assert {path: path.read_text() for path in documents.iterdir() if path.is_file()} == inside
    (documents / entry.name).unlink()


def test_note_of_a_crash_is_not_removed_through_a_link(tmp_path, documents, intact):
    hash = "ab" * 32
    for path in (documents / hash, documents / hash[:2] / hash):
        path.parent.mkdir(exist_ok=True)
    link(tmp_path / "cache" / ".safecache" / "known_bad", documents)
    place = os.path.dirname(os.path.relpath(crashes._make_path(str(tmp_path / "cache"), hash), tmp_path / "cache"))
    assert place.startswith(".safecache")
    with pytest.raises(OSError, match="Not a directory"):
        crashes.forget(str(tmp_path / "cache"), hash)
    shutil.rmtree(documents / hash[:2])


def test_stamp_of_a_sweep_is_not_set_through_a_link(tmp_path, documents, settings, monkeypatch):
    root, started = tmp_path / "cache", []
    root.mkdir()
    monkeypatch.setattr(limits, "_start_sweep", started.append)
    settings(SAFECACHE_MAX_BYTES="1GB")
    letter = next(path for path in documents.rglob("letter"))
    os.utime(letter, (0, 0))
    link(root / ".safecache" / "gc.stamp", letter)
    os.utime(root / ".safecache" / "gc.stamp", (0, 0), follow_symlinks=False)
    limits.keep(Published(str(root)))
    assert letter.stat().st_mtime == 0 and len(started) == 1


def nest(path, depth):
    """That many directories, each in the one before; one path cannot name the last."""
    path.mkdir(parents=True)
    above = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 40, dir_fd=above)
        below = os.open("d" * 40, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=above))
    os.close(above)


COMMANDS = [["du"], ["ls"], ["verify"], ["quarantine", "list"], ["gc"], ["clean"]]


@pytest.mark.parametrize("where", ["other", "aotautograd/x", "triton/0", ".safecache/trash/x", ".safecache/keys/aot"])
def test_commands_go_through_directories_nested_without_end(run, cache, where):
    place = cache.root / where
    try:
        for command in COMMANDS:
            if not place.exists():
                nest(place, 1500)
            said = run(*command, *(["--in"] if command[0] == "quarantine" else []), cache.root)
            assert said.code in (0, 1) and "Traceback" not in said.err, said.err
    finally:
        with folders.open_subdirectory(str(cache.root)) as folder:
            for name in folder.list_names():
                folder.remove(name)
    assert list(cache.root.iterdir()) == []


def test_folder_is_removed_whole_and_what_it_links_to_is_not(tmp_path, documents, intact):
    """What lies beside it stays too."""
    nest(tmp_path / "deep", 30)
    (tmp_path / "deep" / "link").symlink_to(documents)
    (tmp_path / "deep" / ("d" * 40) / "link").symlink_to(documents)
    with folders.open_subdirectory(str(tmp_path)) as folder:
        folder.remove("deep")
        assert folder.list_names() == ["home"]


def test_who_adds_directories_as_fast_as_they_are_removed_keeps_nobody_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_MOST_DIRECTORIES", 50)
    nest(tmp_path / "deep", 3)
    rmdir, removed = filesystem.rmdir, []

    def another(name, *, dir_fd):
        rmdir(name, dir_fd=dir_fd)
        removed.append(name)
        above = os.readlink(f"/proc/self/fd/{dir_fd}")
        nest(next(filter(os.path.isdir, tmp_path.glob("deep/*")), tmp_path / "deep") / f"{len(removed)}", 2)
        assert above

    monkeypatch.setattr(filesystem, "rmdir", another)
    with folders.open_subdirectory(str(tmp_path)) as folder, pytest.raises(OSError, match="not empty"):
        folder.remove("deep")
    assert len(removed) <= 51


def test_path_that_leads_out_of_a_cache_is_refused(tmp_path):
    for path in (tmp_path / "a" / ".." / ".." / "b", tmp_path.parent / "b", tmp_path):
        with pytest.raises(OSError, match="not below"), folders.open_parent(str(tmp_path), str(path)):
            pass


def test_what_is_refused_is_not_moved_away_through_a_link_or_from_outside(tmp_path, documents, intact):
    root = tmp_path / "cache"
    link(root / "fxgraph" / "aa" / "key", documents)
    inside = next(path for path in documents.iterdir() if path.is_file())
    for path in (root / "fxgraph" / "aa" / "key" / inside.name, inside, root / ".." / "home" / inside.name):
        assert entry_files.quarantine(str(path), str(root), Reason.DAMAGED, inside.read_bytes()) is None
    assert inside.exists() and not list(root.glob(".safecache/quarantine/*"))


def test_what_is_nested_without_end_leaves_the_quarantine(tmp_path):
    root = tmp_path / "cache"
    nest(root / ".safecache" / "quarantine" / "x.0123abcd", 1500)
    (root / "entry").touch()
    assert entry_files.quarantine(str(root / "entry"), str(root), Reason.DAMAGED) is not None
    with folders.open_subdirectory(str(root), (".safecache",)) as folder:
        folder.remove("quarantine")


def test_what_a_directory_is_tried_with_is_not_written_elsewhere(tmp_path, documents, intact, monkeypatch):
    """As soon as a probe has its directory, another one is there, or a link."""
    (tmp_path / "cache").mkdir()
    mkdir = filesystem.mkdir
    for exchange in (lambda place: link(place, documents), lambda place: place.chmod(0o777)):

        def exchanged(name, *rest, exchange=exchange, **where):
            mkdir(name, *rest, **where)
            exchange(tmp_path / "cache" / name)

        monkeypatch.setattr(filesystem, "mkdir", exchanged)
        assert directory_faults.probe(str(tmp_path / "cache"))
        found = [each.code for each in directories._try_steps(directories.list_places({})[0], str(tmp_path / "cache"))]
        assert found == ["not-probed"]


@pytest.fixture(params=["one call", "step by step"])
def ways(request, monkeypatch):
    """With openat2(2), and as where it is not to be had."""
    monkeypatch.setattr(filesystem, "_has_openat2", lambda: request.param == "one call")


PLACES = ["aotautograd", "aotautograd/akey", "fxgraph/ab", "triton", "triton/0", "triton/0/KEY", ".safecache/records"]


@pytest.mark.parametrize("linked", PLACES)
def test_nothing_is_published_through_a_link(tmp_path, documents, intact, ways, settings, monkeypatch, linked):
    """It is moved away, as anything that is no directory."""
    root = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    for number, place in enumerate([*PLACES, linked]):
        top = root / "triton" / "0" if place == "triton/0/KEY" else root
        if number == len(PLACES):
            link(root / linked, documents)
        entry_files.publish(str(root / place / "ab" / "entry"), b"content", str(top))
    assert not (root / linked).is_symlink() and (root / linked / "ab" / "entry").read_bytes() == b"content"
    aside = [path for path in root.rglob("quarantine/*") if path.is_symlink()]
    assert [path.readlink() for path in aside] == [documents]


def test_what_was_in_the_way_of_a_save_is_reported_once(tmp_path, documents, monkeypatch, settings, caplog):
    """And is an error where each problem is to be one; it is gone by the next time."""
    root = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    entry = root / "triton" / "0" / "KEY" / "k.cubin"

    def save_again():
        shutil.rmtree(root / "triton", ignore_errors=True)
        link(root / "triton", documents)
        entry_files.publish(str(entry), b"content", str(root))

    save_again()
    save_again()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1 and "a symbolic link was in the place of" in warned[0] and "quarantine" in warned[0]
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError, match="triton"):
        save_again()
    assert not (root / "triton").is_symlink()
    entry_files.publish(str(entry), b"content", str(root))
    assert entry.read_bytes() == b"content"
    assert events.read_counters()[Reason.NOT_A_FILE.value] == 3


@pytest.mark.parametrize("linked", ["aotautograd", ".safecache", "triton", "triton/0", "ab"])
def test_what_becomes_a_link_while_a_cache_is_listed_is_not_gone_through(cache, documents, monkeypatch, linked):
    for place in ("aotautograd", ".safecache/quarantine", "triton/0", "ab"):
        (cache.root / place / ("a" * 52)).mkdir(parents=True)
        (cache.root / place / ("a" * 52) / "file").write_text("content")
    status = folders.Folder.get_status

    def then_swap(folder, name):
        found = status(folder, name)
        if os.path.join(folder.place, name) == str(cache.root / linked) and not (cache.root / linked).is_symlink():
            shutil.rmtree(cache.root / linked)
            link(cache.root / linked, documents)
        return found

    for take in (
        inventory.take_inventory,
        lambda root: list(layout.walk(root)),
        lambda root: list(layout.walk_code(root)),
    ):
        monkeypatch.setattr(folders.Folder, "get_status", then_swap)
        found = str(take(str(cache.root)))
        assert "letter" not in found and "json.gz" not in found
        monkeypatch.undo()


@pytest.mark.parametrize("linked", ["ab", "ab/cd"])
def test_source_of_torch_is_not_written_through_a_link_in_the_cache(tmp_path, documents, intact, monkeypatch, linked):
    root = tmp_path / "cache"
    link(root / linked, documents)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    entry_files.write(str(root / "ab" / "cd" / "source.py"), b"content", make_directories=True)
    assert (root / "ab" / "cd" / "source.py").read_bytes() == b"content" and not (root / linked).is_symlink()


def test_directory_that_becomes_a_link_while_an_entry_is_written_leads_nowhere(
    tmp_path, documents, intact, ways, monkeypatch
):
    """At each call of the file system by itself."""
    root, number = tmp_path / "cache", 0
    while True:
        entry = root / "fxgraph" / f"{number}" / "key" / "entry"
        entry.parent.mkdir(parents=True)
        if not swapped_at(number, lambda entry=entry: link(entry.parent, documents), monkeypatch, entry, root):
            break
        number += 1
    assert number > 8


def swapped_at(number, swap, monkeypatch, entry, root):
    """Publish, with the swap before the call of this number; whether there were so many."""
    calls = []

    def watched(real):
        def call(*rest, **named):
            calls.append(real)
            if len(calls) == number + 1:
                swap()
            return real(*rest, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "descend", "mkdir", "write", "dup", "rename", "close"):
            patch.setattr(filesystem, name, watched(getattr(filesystem, name)))
        with suppress(OSError):
            entry_files.publish(str(entry), b"content", str(root))
    return len(calls) > number


def test_cache_may_itself_be_reached_through_links(tmp_path, ways, monkeypatch):
    """Who names it means them."""
    (tmp_path / "real").mkdir()
    (tmp_path / "cache").symlink_to("real")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    entry_files.publish(
        str(tmp_path / "cache" / "triton" / "0" / "file"), b"content", str(tmp_path / "cache" / "triton" / "0")
    )
    assert (tmp_path / "real" / "triton" / "0" / "file").read_bytes() == b"content"


@pytest.mark.parametrize("linked", ["", "ab"], ids=["as it should be", "through a link"])
def test_file_is_read_with_one_descriptor_and_through_no_link(tmp_path, documents, intact, ways, monkeypatch, linked):
    root, descend = tmp_path / "cache", filesystem.descend
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    (root / "ab").mkdir(parents=True)
    (root / "ab" / "letter").write_text("ours")
    if linked:
        link(root / linked, next(documents.glob("*/letter")).parent)

    def none_left(directory, *rest):
        if directory != filesystem.NOWHERE:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return descend(directory, *rest)

    monkeypatch.setattr(filesystem, "descend", none_left)
    if linked:
        with pytest.raises(NotADirectoryError):
            entry_files.read_unverified(str(root / "ab" / "letter"), 100)
    else:
        assert entry_files.read_unverified(str(root / "ab" / "letter"), 100) == b"ours"


@pytest.mark.parametrize("path", ["../home/letter", "ab/../../home/letter", "./..//home/letter"])
def test_way_that_leads_out_of_an_open_directory_is_none(tmp_path, ways, path):
    (tmp_path / "cache" / "ab").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    with folders.open_subdirectory(str(tmp_path / "cache")) as folder, pytest.raises(OSError, match="cross-device"):
        # While something is renamed anywhere, the kernel cannot tell, and has its callers try again.
        filesystem.retry(lambda: filesystem.descend(folder.descriptor, path, os.O_RDONLY), filesystem.PASSING)


def test_ways_of_writing_a_path_lead_to_the_same(tmp_path, ways, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tmp_path}/cache/")
    (tmp_path / "cache" / "ab").mkdir(parents=True)
    (tmp_path / "cache" / "ab" / "letter").write_text("ours")
    for path in ("ab/letter", "./ab//letter", "ab/./letter"):
        assert entry_files.read_unverified(f"{tmp_path}/cache/{path}", 100) == b"ours"
