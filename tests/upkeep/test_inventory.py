"""Which files of a cache belong together, and what is no part of a cache and so never touched."""

from __future__ import annotations

import os
import shutil

import pytest
from helpers.caches import HOUR, Cache, key

from safecache.fs import folders
from safecache.reporting.kinds import Kind
from safecache.upkeep import inventory


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def group_of(cache, kind):
    [group] = [group for group in inventory.take_inventory(str(cache.root)).groups if group.kind is kind]
    return group


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda cache: [cache.aot("a", HOUR)], Kind.AOT_ENTRY),
        (lambda cache: [cache.fx("a", HOUR)], Kind.FX_ENTRY),
        (lambda cache: cache.code("a", HOUR), Kind.NATIVE_CODE),
        (lambda cache: cache.kernel("a", HOUR), Kind.KERNEL),
        (lambda cache: cache.header("a", HOUR), Kind.HEADER),
        (lambda cache: cache.quarantined("a", HOUR), Kind.QUARANTINE),
        (lambda cache: cache.crash("a", HOUR), Kind.CRASH_REPORT),
        (lambda cache: cache.difference("a", HOUR), Kind.DIFFERENCE),
        (lambda cache: [cache.known_bad("a", HOUR)], Kind.KNOWN_BAD),
        (lambda cache: [cache.journal("a", HOUR)], Kind.JOURNAL),
        (lambda cache: [cache.key_record("a", HOUR)], Kind.KEY_RECORD),
    ],
    ids=[
        "aot",
        "fx",
        "code",
        "kernel",
        "header",
        "quarantine",
        "crash",
        "difference",
        "known-bad",
        "journal",
        "key-record",
    ],
)
def test_group_is_all_that_belongs_together(cache, make, kind):
    made = make(cache)
    found = inventory.take_inventory(str(cache.root))
    assert [group.kind for group in found.groups] == [kind] and found.other == []
    [group] = found.groups
    assert sorted(file.path for file in group.all_files) == sorted(map(str, made)) == sorted(map(str, cache.files()))
    assert group.size == cache.size() and max(group.stamps) == cache.now - HOUR


def test_directory_of_triton_itself_has_kernels(tmp_path):
    cache = Cache(tmp_path / "inductor")
    made = cache.kernel("a", HOUR)
    of_triton = Cache(tmp_path / "inductor" / "triton" / "0")
    assert len(group_of(of_triton, Kind.KERNEL).all_files) == len(made)


def test_directory_of_headers_by_itself_has_headers(cache):
    made = cache.header("a", HOUR)
    assert len(group_of(Cache(cache.root / "precompiled_headers"), Kind.HEADER).all_files) == len(made)


def test_same_kernel_of_two_devices_is_two_groups_with_their_own_records(cache):
    made = [cache.kernel("a", HOUR, device) for device in ("0", "1")]
    groups = inventory.take_inventory(str(cache.root)).groups
    assert sorted(sorted(file.path for file in group.all_files) for group in groups) == [
        sorted(map(str, files)) for files in made
    ]


def test_result_of_autotuning_is_a_group_with_its_record(cache):
    name = "0" * 64 + ".best_config"
    made = [cache.file(cache.root / "ab" / name, HOUR), cache.record(name, HOUR)]
    group = group_of(cache, Kind.AUTOTUNING)
    assert sorted(file.path for file in group.all_files) == sorted(map(str, made))


def test_record_and_lock_of_what_is_gone_are_groups_of_their_own(cache):
    cpp, library, _, lock = cache.code("a", HOUR)
    cpp.unlink()
    library.unlink()
    assert {group.kind for group in inventory.take_inventory(str(cache.root)).groups} == {Kind.RECORD, Kind.LOCK}
    assert group_of(cache, Kind.LOCK).lock.path == str(lock)


def test_use_of_a_record_is_a_use_of_its_group(cache):
    record = cache.code("a", 9 * HOUR)[2]
    cache.use(record, HOUR)
    assert max(group_of(cache, Kind.NATIVE_CODE).stamps) == cache.now - HOUR


def test_directory_with_a_file_that_is_being_written_is_told(cache):
    temporary = cache.aot("a", HOUR).with_name(".0123456789abcdef.tmp")
    cache.file(temporary, 0)
    beside = cache.file(cache.code("b", HOUR)[0].with_name(".1.2.tmp"), 0)
    found = inventory.take_inventory(str(cache.root))
    assert found.writing == sorted([str(temporary.parent), str(beside.parent)])


STRANGERS = [
    "notes.txt",
    "aotautograd/notes.txt",
    "aotautograd/somebody's/entry",
    f"aotautograd/{key('f', 'x')}/entry",
    "fxgraph/notes.txt",
    f"fxgraph/ab/{key('a', 'x')}/entry",
    f"ab/{key('c', 'x')}.py",
    "ab/main.py",
    f"{key('c', 'x')[1:3]}/{key('c', 'x')}",
    f"{key('c', 'x')[1:3]}/x{key('c', 'x')}.py",
    f"abc/{key('c', 'x')}.py",
    "locks/g++.lock",
    "triton/0/notes.txt",
    "triton/0/ABC/k.cubin",
    "precompiled_headers/notes.txt",
    "precompiled_headers/mine/c.h",
    ".safecache/records/ab/notes.txt",
    ".safecache/crashes/notes.txt",
    ".safecache/known_bad/notes.txt",
    ".safecache/gc.stamp",
    "dynamo/state.pkl",
    "home/ab/file",
]


@pytest.mark.parametrize("path", STRANGERS)
def test_what_is_not_recognised_is_counted_and_belongs_to_no_group(cache, path):
    made = cache.file(cache.root / path, HOUR)
    found = inventory.take_inventory(str(cache.root))
    assert found.groups == [] and [file.path for file in found.other] == [str(made)]


def test_record_of_what_is_not_recognised_stays_with_it(cache):
    cache.file(cache.root / "elsewhere" / "lib.so", HOUR)
    cache.record("lib.so", HOUR)
    found = inventory.take_inventory(str(cache.root))
    assert found.groups == [] and len(found.other) == 2


PLACES = ["aotautograd", "fxgraph", "locks", "triton", "precompiled_headers", ".safecache", "ab", "triton/0"]


@pytest.mark.parametrize("place", [*PLACES, ".safecache/quarantine", ".safecache/records", ".safecache/trash"])
def test_link_in_the_place_of_a_directory_is_not_followed(cache, tmp_path, place):
    other = Cache(tmp_path / "other")
    for make in (other.aot, other.fx, other.code, other.kernel, other.header, other.quarantined):
        make("a", HOUR)
    other.file(other.root / ".safecache" / "trash" / "left" / "file", HOUR)
    (cache.root / place).parent.mkdir(exist_ok=True)
    target = other.root / place if (other.root / place).exists() else other.root / key("c", "a")[1:3]
    os.symlink(target, cache.root / place)
    found = inventory.take_inventory(str(cache.root))
    assert found.groups == [] and [file.path for file in found.other] == [str(cache.root / place)]


def test_link_in_the_place_of_a_source_is_no_part_of_a_group(cache, tmp_path):
    own = key("c", "x")
    (cache.root / own[1:3]).mkdir()
    os.symlink(tmp_path, cache.root / own[1:3] / f"{own}.py")
    assert inventory.take_inventory(str(cache.root)).groups == []


def test_cache_that_is_emptied_meanwhile_is_listed_without_an_error(cache, monkeypatch):
    for name in "abc":
        cache.aot(name, HOUR)
        cache.code(name, HOUR)
    names, emptied = folders.Folder.list_names, []

    def then_empty(folder):
        found = names(folder)
        if folder.place.endswith(("aotautograd", "locks")):
            shutil.rmtree(folder.place)
            emptied.append(folder.place)
        return found

    monkeypatch.setattr(folders.Folder, "list_names", then_empty)
    assert {group.kind for group in inventory.take_inventory(str(cache.root)).groups} <= {
        Kind.AOT_ENTRY,
        Kind.NATIVE_CODE,
    }
    assert len(emptied) == 2


def test_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        inventory.take_inventory(str(tmp_path / "nowhere"))
