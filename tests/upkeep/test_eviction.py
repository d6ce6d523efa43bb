"""Limits: the least recently used goes first, as a whole; what is in use, of others or unknown stays."""

from __future__ import annotations

import os

import pytest
from conftest import needs_root
from helpers.caches import DAY, HOUR, Cache, at_each_rename, key

from safecache.errors import CacheWriteError
from safecache.fs import folders, mounts
from safecache.reporting.kinds import Kind
from safecache.upkeep import eviction
from safecache.upkeep.eviction import Limits

RUNNING_TORCH = eviction.find_running_torch


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def sweep(cache, how=None, **limits):
    return eviction.sweep(str(cache.root), Limits(**limits), now=cache.now, **(how or {}))


def removed(sweep):
    return [group.name for group in sweep.removed]


def reasons(sweep):
    return {group.name: why for group, why in sweep.kept}


def test_without_limits_nothing_of_use_is_removed(cache):
    for make in (cache.aot, cache.fx, cache.code, cache.kernel, cache.header, cache.quarantined):
        make("a", 1000 * DAY)
    before = cache.files()
    assert sweep(cache).removed == [] and cache.files() == before


@pytest.mark.parametrize("limit", [{"size": 2500}, {"files": 2}])
def test_least_recently_used_goes_first_until_the_limit_is_met(cache, limit):
    for name, age in (("old", 30), ("newest", 2), ("older", 40), ("new", 20)):
        cache.aot(name, age * HOUR)
    done = sweep(cache, **limit)
    assert removed(done) == [key("a", "older"), key("a", "old")]
    assert {path.parent.name for path in cache.files()} == {key("a", "new"), key("a", "newest")}
    assert (done.size, done.files, done.kept) == (cache.size(), len(cache.files()), []) == (2000, 2, [])


def test_cache_within_its_limits_stays(cache):
    cache.code("a", 1000 * DAY)
    before = cache.files()
    assert sweep(cache, size=cache.size(), files=4, age=1000 * DAY).removed == [] and cache.files() == before


def test_what_is_older_than_the_limit_goes_and_nothing_else(cache):
    for name, days in (("a", 29), ("b", 31)):
        cache.code(name, days * DAY)
    done = sweep(cache, age=30 * DAY)
    assert removed(done) == [key("c", "b")]
    assert len(cache.files()) == 4 and not any(key("c", "b") in str(path) for path in cache.files())


@pytest.mark.parametrize("make", ["aot", "fx", "code", "kernel", "header", "quarantined"])
def test_group_goes_with_all_its_files(cache, make):
    getattr(cache, make)("a", 30 * DAY)
    done = sweep(cache, age=DAY)
    assert len(done.removed) == 1 and cache.files() == [] and (done.size, done.files) == (0, 0)


def test_removed_group_leaves_no_trash(cache):
    cache.kernel("a", 30 * DAY)
    sweep(cache, age=DAY)
    assert [path.name for path in cache.root.rglob("*") if len(path.name) == 16] == []


def test_quarantine_goes_before_anything_of_use(cache):
    cache.aot("a", 30 * DAY)
    cache.quarantined("b", 2 * HOUR)
    assert [group.kind for group in sweep(cache, size=1000).removed] == [Kind.QUARANTINE]


def test_journals_go_before_anything_of_use(cache):
    cache.aot("a", 30 * DAY)
    cache.journal("b", 2 * HOUR)
    assert [group.kind for group in sweep(cache, size=1000).removed] == [Kind.JOURNAL]


def test_records_of_nothing_go_without_any_limit_and_young_ones_stay(cache):
    """A record is there before its file."""
    cache.record("old", 2 * HOUR)
    young = cache.record("young", 0.5 * HOUR)
    assert sweep(cache).kept == [] and cache.files() == [young]


def test_entry_that_refers_goes_before_what_it_refers_to(cache):
    for name in ("a", "b"):
        cache.fx(f"{name} graph", 30 * HOUR)
        cache.aot(name, 2 * HOUR, [f"{name} graph"])
    done = sweep(cache, files=1)
    kinds = [group.kind for group in done.removed]
    assert kinds == [Kind.AOT_ENTRY, Kind.AOT_ENTRY, Kind.FX_ENTRY]


def test_graph_is_as_young_as_the_youngest_entry_that_refers_to_it(cache):
    """Its own stamp is older: it was younger than the interval when the second entry was first used."""
    cache.fx("shared", 30 * DAY)
    cache.fx("unshared", 20 * DAY)
    cache.aot("old", 40 * DAY, ["shared"])
    cache.aot("young", 2 * HOUR, ["shared"])
    assert removed(sweep(cache, size=2000)) == [key("a", "old"), key("f", "unshared")]
    assert removed(sweep(cache, age=DAY)) == []


def test_graph_stays_with_an_entry_that_refers_to_it_and_is_used_just_now(cache, monkeypatch):
    cache.fx("graph", 30 * DAY)
    entry = cache.aot("a", 30 * DAY, ["graph"])
    cache.use_at_rename(monkeypatch, entry)
    done = sweep(cache, age=DAY)
    assert done.removed == [] and len(cache.files()) == 2
    assert reasons(done) == {
        key("a", "a"): "it was used just now",
        key("f", "graph"): "an AOTAutograd entry that stays refers to it",
    }


@pytest.mark.parametrize("make", ["aot", "fx", "code", "kernel", "header", "quarantined"])
def test_what_was_used_within_the_last_hour_stays_whatever_the_limit(cache, make):
    getattr(cache, make)("a", 0.9 * HOUR)
    before = cache.files()
    done = sweep(cache, size=1, files=1, age=1)
    assert done.removed == [] and cache.files() == before
    assert set(reasons(done).values()) == {"it was used in the last 1 h"} and done.size == cache.size()


@pytest.mark.parametrize("make", ["aot", "fx", "code", "kernel"])
def test_group_that_is_used_while_it_is_removed_is_put_back(cache, monkeypatch, make):
    made = getattr(cache, make)("a", 30 * DAY)
    files = [made] if make in ("aot", "fx") else made
    before = {path: path.read_bytes() for path in cache.files()}
    cache.use_at_rename(monkeypatch, files[0])
    done = sweep(cache, age=DAY)
    assert done.removed == [] and list(reasons(done).values()) == ["it was used just now"]
    assert {path: path.read_bytes() for path in cache.files()} == before


@pytest.mark.parametrize("make", ["code", "kernel"])
def test_what_others_may_be_about_to_load_is_not_even_moved_before_the_stamps_are_looked_at(cache, monkeypatch, make):
    files = getattr(cache, make)("a", 30 * DAY)
    cache.use_at_rename(monkeypatch, files[0])
    moved = []
    at_each_rename(monkeypatch, lambda source, rename: moved.append(source) or rename())
    sweep(cache, age=DAY)
    assert [path for path in moved if ".safecache" not in path] == [str(files[0])]


def test_within_the_time_of_one_stamp_a_library_goes_after_the_entry_that_leads_to_it(cache):
    """It took a compiler; and it was there first, when both were new."""
    cache.code("a", 30 * DAY + 600)
    cache.aot("a", 30 * DAY + 300)
    assert removed(sweep(cache, files=4)) == [key("a", "a")]


def test_kernel_whose_record_is_stamped_while_it_is_removed_is_put_back(cache, monkeypatch):
    files = cache.kernel("a", 30 * DAY)
    before = cache.files()
    cache.use_at_rename(monkeypatch, files[-1])
    assert sweep(cache, age=DAY).removed == [] and cache.files() == before


def test_entry_published_beside_an_old_one_is_kept_and_so_is_what_comes_while_it_is_away(cache, monkeypatch):
    """The directory that is put back finds a new one in its place."""
    old = cache.aot("a", 30 * DAY)

    def publish(source, rename):
        if source == str(old.parent):
            cache.file(old.with_name("second"), 0)
        rename()
        if source == str(old.parent):
            cache.file(old.with_name("third"), 0)

    at_each_rename(monkeypatch, publish)
    assert sweep(cache, age=DAY).removed == []
    assert {path.name for path in cache.files()} == {"entry", "second", "third"}


def test_library_that_a_process_has_mapped_stays(cache, monkeypatch):
    library, other = cache.code("a", 30 * DAY)[1], cache.code("b", 30 * DAY)[1]
    maps = {("a.so", other.stat().st_ino): 1, (library.name, library.stat().st_ino): 4711}
    monkeypatch.setattr(eviction, "list_mapped_files", lambda: maps)
    done = sweep(cache, age=DAY)
    assert removed(done) == [key("c", "b")] and reasons(done) == {key("c", "a"): "process 4711 has it mapped"}


def test_header_stays_while_a_process_runs_torch(cache, monkeypatch):
    """One that has looked for it hours ago includes it when it compiles again."""
    monkeypatch.setattr(eviction, "find_running_torch", RUNNING_TORCH)
    cache.header("a", 30 * DAY)
    cache.code("a", 30 * DAY)
    monkeypatch.setattr(eviction, "list_mapped_files", lambda: {("libc.so.6", 1): 1, ("libtorch_python.so", 2): 4711})
    done = sweep(cache, age=DAY)
    assert [group.kind for group in done.removed] == [Kind.NATIVE_CODE]
    assert list(reasons(done).values()) == ["process 4711 runs torch, and may be about to include it"]
    monkeypatch.setattr(eviction, "list_mapped_files", lambda: {("libc.so.6", 1): 1})
    assert [group.kind for group in sweep(cache, age=DAY).removed] == [Kind.HEADER]


def test_group_whose_lock_is_held_stays(cache, holding):
    lock = cache.code("a", 30 * DAY)[3]
    cache.code("b", 30 * DAY)
    with holding(lock):
        done = sweep(cache, age=DAY)
    assert removed(done) == [key("c", "b")] and reasons(done) == {key("c", "a"): "its lock is held"}
    assert removed(sweep(cache, age=DAY)) == [key("c", "a")] and cache.files() == []


def test_over_a_network_code_stays_for_a_day(cache, monkeypatch):
    """Another host may have it mapped, and that cannot be seen here."""
    monkeypatch.setattr(mounts, "is_over_a_network", lambda path: True)
    cache.code("young", 20 * HOUR)
    cache.code("old", 30 * HOUR)
    cache.aot("entry", 20 * HOUR)
    done = sweep(cache, age=HOUR)
    assert set(removed(done)) == {key("a", "entry"), key("c", "old")}
    assert reasons(done) == {key("c", "young"): "it was used in the last 24 h"}


def test_stamp_of_a_clock_that_was_wrong_is_set_to_now_and_ages_from_then_on(cache):
    files = cache.code("a", -1000 * DAY)
    assert sweep(cache, age=DAY).removed == []
    library = files.pop(1)
    assert {path.stat().st_mtime for path in files} == {cache.now} < {library.stat().st_mtime, cache.now}
    cache.now += 2 * DAY
    assert removed(sweep(cache, age=DAY)) == [key("c", "a")]


def test_one_wrong_stamp_does_not_count(cache):
    files = cache.code("a", 30 * DAY)
    cache.use(files[0], -1000 * DAY)
    assert removed(sweep(cache, {"dry_run": True}, age=DAY)) == [key("c", "a")]


def test_what_is_not_recognised_stays_and_is_no_part_of_the_sums(cache):
    strangers = [cache.file(cache.root / name / "big", 1000 * DAY, b"x" * 9000) for name in ("mine", ".safecache")]
    cache.aot("a", 30 * DAY)
    assert sweep(cache, size=5000).removed == []
    done = sweep(cache, {"heed_jobs": False}, size=-1, files=1, age=1)
    assert removed(done) == [key("a", "a")] and cache.files() == sorted(strangers) and done.size == 0


def test_dry_run_names_the_same_groups_and_changes_nothing(cache):
    for name in "abc":
        cache.aot(name, 30 * DAY, ["graph"])
        cache.code(name, 40 * DAY)
        cache.kernel(name, 50 * DAY)
    cache.fx("graph", 30 * DAY)
    before = {path: path.stat().st_mtime_ns for path in cache.files()}
    told = sweep(cache, {"dry_run": True}, size=3000)
    assert {path: path.stat().st_mtime_ns for path in cache.files()} == before and told.removed
    done = sweep(cache, size=3000)
    assert removed(done) == removed(told) and (done.size, done.files) == (told.size, told.files)


def test_forced_sweep_heeds_neither_use_nor_locks_nor_maps(cache, monkeypatch, holding):
    library, lock = cache.code("a", 0)[1:4:2]
    monkeypatch.setattr(eviction, "list_mapped_files", lambda: {(library.name, library.stat().st_ino): 4711})
    with holding(lock):
        done = sweep(cache, {"heed_jobs": False}, size=-1)
    assert removed(done) == [key("c", "a")]
    assert cache.files() == [lock]  # another process has it, and the next waits for that


@needs_root
def test_directory_of_another_user_is_left_alone(cache, monkeypatch, settings):
    cache.aot("a", 30 * DAY)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.chown(cache.root, 4242, -1)
    with pytest.raises(CacheWriteError, match="belongs to uid 4242"):
        sweep(cache, age=DAY)
    settings(SAFECACHE_SHARED=1)
    assert removed(sweep(cache, age=DAY)) == [key("a", "a")]


@needs_root
def test_group_of_another_user_is_left_alone(cache, settings):
    os.chown(cache.aot("a", 30 * DAY), 4242, -1)
    cache.aot("b", 30 * DAY)
    done = sweep(cache, age=DAY)
    assert removed(done) == [key("a", "b")] and reasons(done) == {key("a", "a"): "it belongs to uid 4242"}
    settings(SAFECACHE_SHARED=1)
    assert removed(sweep(cache, age=DAY)) == [key("a", "a")]


def test_directory_that_becomes_a_link_is_not_followed(cache, tmp_path, monkeypatch):
    outside = Cache(tmp_path / "outside")
    cache.aot("a", 30 * DAY)
    victim = outside.aot("a", 30 * DAY)
    take = eviction.take_inventory

    def replaced(root):
        found = take(root)
        os.rename(cache.root / "aotautograd", tmp_path / "gone")
        os.symlink(outside.root / "aotautograd", cache.root / "aotautograd")
        return found

    monkeypatch.setattr(eviction, "take_inventory", replaced)
    done = sweep(cache, age=DAY)
    assert done.removed == [] and victim.exists() and "cannot be removed" in reasons(done)[key("a", "a")]


def test_links_in_what_is_removed_are_not_followed(cache, tmp_path):
    entry = cache.aot("a", 30 * DAY)
    kept = cache.file(tmp_path / "outside" / "file", 0)
    os.symlink(kept.parent, entry.with_name("link"))
    os.utime(entry.with_name("link"), (0, 0), follow_symlinks=False)
    sweep(cache, age=DAY)
    assert cache.files() == [] and kept.exists()


def test_group_that_cannot_be_moved_is_told_with_the_reason_and_the_others_go(cache, monkeypatch):
    cache.aot("a", 30 * DAY)
    cache.aot("b", 40 * DAY)

    def refuse(source, rename):
        if key("a", "b") in source:
            raise OSError(30, "Read-only file system", source)
        rename()

    at_each_rename(monkeypatch, refuse)
    done = sweep(cache, age=DAY)
    assert removed(done) == [key("a", "a")]
    assert reasons(done) == {key("a", "b"): "it cannot be removed: Read-only file system"}


def test_second_sweep_at_the_same_time_does_nothing(cache, holding):
    cache.aot("a", 30 * DAY)
    with holding(cache.root):
        assert sweep(cache, age=DAY) is None
    assert removed(sweep(cache, age=DAY)) == [key("a", "a")]


def test_what_dead_writers_and_killed_sweeps_left_is_removed(cache):
    entry = cache.aot("a", 2 * HOUR)
    cache.file(entry.with_name(".0123456789abcdef.tmp"), cache.now)
    cache.file(cache.root / ".0123456789abcdef.tmp", cache.now)  # of a pack that was being fetched
    cache.file(cache.root / ".safecache" / "trash" / "0123456789abcdef" / "0.a", 0)
    uuid = "0bc1d2e3-0bc1-0bc1-0bc1-0bc1d2e30bc1"
    for age, name in ((2 * DAY, f"tmp.pid_1_{uuid}"), (2 * DAY, f"tmp.{uuid}"), (HOUR, f"tmp.pid_2_{uuid}")):
        cache.file(cache.root / "triton" / "0" / name / "k.cubin", age)
    done = sweep(cache)
    assert done.reaped == 5000 and entry.exists()
    assert [path.parent.name for path in cache.files() if path != entry] == [f"tmp.pid_2_{uuid}"]


@needs_root
def test_directory_that_another_user_has_closed_stays_and_stops_nothing(cache, monkeypatch):
    closed = cache.aot("closed", 30 * DAY).parent
    cache.aot("a", 30 * DAY)
    os.chown(closed, 4242, -1)
    os.utime(closed, (0, 0))
    names = folders.Folder.list_names

    def refuse(folder):
        if folder.place == str(closed):
            raise PermissionError(13, "Permission denied", folder.place)
        return names(folder)

    monkeypatch.setattr(folders.Folder, "list_names", refuse)
    done = sweep(cache, age=DAY)
    assert removed(done) == [key("a", "a")] and reasons(done) == {closed.name: "it belongs to uid 4242"}


def test_record_of_a_key_outlives_what_was_saved_under_it(cache):
    """It is what tells an entry that was evicted from one that was never there."""
    cache.fx("a", 40 * DAY)
    record = cache.key_record("a", 40 * DAY)
    assert removed(sweep(cache, age=30 * DAY)) == [key("f", "a")] and cache.files() == [record]
    cache.use(record, 61 * DAY)
    assert len(removed(sweep(cache, age=30 * DAY))) == 1 and cache.files() == []


def test_records_of_keys_go_last_where_room_is_wanted(cache):
    cache.key_record("a", 40 * DAY)
    cache.fx("b", 2 * HOUR)
    assert removed(sweep(cache, size=1500)) == [key("f", "b")]
