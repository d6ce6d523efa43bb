"""A real cache that is swept: what was used stays, and what went is made anew, without a warning or an error."""

from __future__ import annotations

import os
import time

import pytest
from conftest import WARM
from helpers.caches import DAY, HOUR, Cache
from scenes import kernel_scenes

from safecache.reporting.kinds import Kind
from safecache.upkeep import eviction, inventory
from safecache.upkeep.eviction import Limits

pytestmark = pytest.mark.default_release


# What is written about lookups, beside what is looked up.
TOLD = {Kind.JOURNAL, Kind.KEY_RECORD}


def age(directory, seconds):
    """As if nothing had been used for so long."""
    for path in directory.rglob("*"):
        if path.is_file():
            moment = path.stat().st_mtime - seconds
            os.utime(path, (moment, moment))


def size_of(home):
    return sum(group.size for group in inventory.take_inventory(str(home.cache)).groups)


def test_every_file_that_torch_and_safecache_write_belongs_to_a_group(warm):
    found = inventory.take_inventory(str(warm.cache))
    assert found.other == [] and found.writing == []
    kinds = {group.kind for group in found.groups}
    assert kinds - TOLD == {Kind.AOT_ENTRY, Kind.FX_ENTRY, Kind.NATIVE_CODE}
    libraries = [group for group in found.groups if any(file.path.endswith(".so") for file in group.files)]
    assert libraries and all(group.records and group.lock for group in libraries)


def test_all_that_a_warm_start_uses_has_a_new_stamp_and_stays(warm):
    age(warm.cache, 30 * DAY)
    assert warm.run().hits == WARM
    stamps = {group.name: max(group.stamps) for group in inventory.take_inventory(str(warm.cache)).groups}
    now = time.time()
    # But for the probes of vector instructions, which the zygote had done before.
    used = {name for name, stamp in stamps.items() if now - stamp < HOUR}
    done = eviction.sweep(str(warm.cache), Limits(age=DAY))
    assert {group.name for group in done.removed} == set(stamps) - used
    assert {group.kind for group in done.removed} - TOLD <= {Kind.NATIVE_CODE}
    answer = warm.run()
    assert answer.hits == WARM and answer.warnings == []


def test_second_warm_start_stamps_nothing(warm):
    age(warm.cache, 30 * DAY)
    warm.run()
    before = {path: path.stat().st_mtime_ns for path in warm.cache.rglob("*") if path.is_file()}
    assert warm.run().hits == WARM
    assert {path: path.stat().st_mtime_ns for path in warm.cache.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("percent", [90, 70, 50, 30, 10])
def test_cache_swept_to_any_size_hits_or_is_compiled_anew(warm, percent):
    age(warm.cache, 2 * HOUR)
    limit = size_of(warm) * percent // 100
    done = eviction.sweep(str(warm.cache), Limits(size=limit))
    assert done.removed and done.kept == [] and done.size == size_of(warm) <= limit
    for _ in range(2):
        answer = warm.run()
        assert answer.ok and answer.warnings == [], answer
    assert answer.hits == WARM and len(warm.aot_entries) == 1


def test_each_source_or_library_alone_can_go(warm):
    """Whichever it is, nobody stumbles over what is left."""

    def code():
        groups = inventory.take_inventory(str(warm.cache)).groups
        # The probes of vector instructions were done before, in the zygote.
        return {g.name: g for g in groups if g.kind is Kind.NATIVE_CODE and not any("load_ok" in p for p in g.paths)}

    age(warm.cache, 2 * HOUR)
    for name in code():
        assert eviction.remove_group(code()[name], str(warm.cache))
        answer = warm.run()
        assert answer.ok and answer.warnings == [] and answer.hits == WARM, name


def test_limit_in_the_environment_is_kept_without_being_asked(warm):
    old = Cache(warm.cache, time.time())
    files = [old.aot("old", 30 * DAY, ["old"]), old.fx("old", 30 * DAY), *old.code("old", 30 * DAY)]
    for entry in warm.aot_entries:
        if entry not in files:
            entry.unlink()  # so that one is published
    answer = warm.run(env={"SAFECACHE_MAX_AGE": "7d"})
    assert answer.ok and answer.warnings == [] and answer.stats["saved"] == 1, answer
    deadline = time.monotonic() + 60
    while any(path.exists() for path in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(path.exists() for path in files)
    assert warm.run().hits == WARM


@pytest.mark.parametrize("scene", [kernel_scenes.compile_kernel, kernel_scenes.build_module])
def test_kernel_that_is_used_stays_and_one_that_went_is_compiled_anew(home, scene):
    pytest.importorskip("triton")
    triton = home.base / "triton"
    assert home.run(scene).result["compiled"]
    found = inventory.take_inventory(str(triton))
    kernels = [group for group in found.groups if group.kind is Kind.KERNEL]
    assert found.other == [] and {group.kind for group in found.groups} - TOLD == {Kind.KERNEL}
    assert kernels and all(group.records for group in kernels)
    age(triton, 30 * DAY)
    assert not home.run(scene).result["compiled"]
    assert {group.kind for group in eviction.sweep(str(triton), Limits(age=DAY)).removed} <= TOLD
    age(triton, 30 * DAY)
    assert eviction.sweep(str(triton), Limits(age=DAY)).files == 0
    for compiled in (True, False):
        answer = home.run(scene)
        assert answer.ok and answer.warnings == [] and answer.result["compiled"] == compiled, answer


def test_kernel_of_which_a_killed_sweep_took_the_list_is_compiled_anew(home):
    pytest.importorskip("triton")
    home.run(kernel_scenes.compile_kernel)
    groups = inventory.take_inventory(str(home.base / "triton")).groups
    [group] = [group for group in groups if group.kind is Kind.KERNEL]
    for path in group.steps[0]:
        os.unlink(path)
    answer = home.run(kernel_scenes.compile_kernel)
    assert answer.ok and answer.warnings == [] and answer.result["compiled"], answer
