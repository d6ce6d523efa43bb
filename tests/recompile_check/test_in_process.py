"""Hits that are hidden from torch, which compiles them where it stands, and compared with what it saves."""

from __future__ import annotations

import shutil

import pytest
from scenes import model_scenes

from recompile_check import programs

pytestmark = [pytest.mark.default_release, pytest.mark.xdist_group("recompile check")]

ALL = {"SAFECACHE_RECOMPILE_SAMPLE": "1"}
TRUSTED = {"SAFECACHE_ASSUME_UNCHANGED": "verified.shifted.default"}


def run(site, scene=programs.run_program, env=None, **arguments):
    """What it has come to, and what was warned of."""
    answer = site.run(scene, env=TRUSTED | (env or {}), **arguments)
    assert answer.ok, answer
    return answer.result, answer.warnings


@pytest.fixture(scope="module")
def template(new_home):
    home = new_home()
    stats, _ = run(home)
    assert stats["value"] == 6
    return home


@pytest.fixture
def site(template, home):
    """A copy of a cache that is warm."""
    shutil.copytree(template.base, home.base, dirs_exist_ok=True, symlinks=True)
    return home


def entries(site):
    return {path: path.read_bytes() for path in (*site.aot_entries, *site.fx_entries)}


def test_honest_hit_is_compiled_alike_once_in_a_process_and_not_saved_again(site):
    before = entries(site)
    stats, warnings = run(site, env=ALL, is_repeated=True)
    assert (stats["aot miss: sampled"], stats["fx miss: sampled"], stats["recompile matches"]) == (1, 1, 2)
    assert stats["aot hit"] == 1, "the second time"
    assert {"saved", "recompile differs", "not recompiled"}.isdisjoint(stats), stats
    assert entries(site) == before and warnings == []


def test_artifact_that_a_sampled_hit_is_part_of_is_saved(home):
    for env in ({}, ALL):
        answer = home.run(model_scenes.standalone, save=str(home.base / "artifact"), fmt="binary", env=TRUSTED | env)
        assert answer.ok and answer.result["saveable"] and answer.warnings == [], answer
    assert answer.stats["recompile matches"] >= 1, answer.stats


def test_training_and_dynamic_shapes_are_compiled_alike(site):
    run(site, is_all=True)
    before = entries(site)
    stats, warnings = run(site, env=ALL, is_all=True)
    assert stats["recompile matches"] == 7 and warnings == []
    assert (stats["aot miss: sampled"], stats["fx miss: sampled"]) == (3, 4) and entries(site) == before


def test_stale_hit_is_not_used_and_replaced_with_evidence(site):
    stats, _ = run(site, added=2)
    assert stats["value"] == 6, "the key leaves out what the operator does"
    stats, warnings = run(site, env=ALL, added=2)
    assert (stats["value"], stats["recompile differs"], stats["quarantined"]) == (9, 1, 1), warnings
    [line] = warnings
    assert "+++ compiled now" in line and line.count("[recompile differs]") == 1
    [kept] = (site.cache / ".safecache" / "differences").iterdir()
    names = {"in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json", "record"}
    assert {each.name for each in kept.iterdir()} == names
    stats, _ = run(site, added=2)
    assert (stats["aot hit"], stats["value"]) == (1, 9)
    stats, warnings = run(site, env=ALL, added=2)
    assert stats["recompile matches"] == 2 and "recompile differs" not in stats, warnings


def test_nothing_is_compiled_again_where_all_must_hit(site):
    stats, _ = run(site, env=ALL | {"SAFECACHE_MUST_HIT": "1"})
    assert (stats["aot hit"], stats["value"]) == (1, 6) and "recompile matches" not in stats


def test_entry_from_a_lower_tier_is_compared_and_stays(site):
    before = entries(site)
    tiers = {"TORCHINDUCTOR_CACHE_DIR": str(site.base / "own"), "SAFECACHE_LOWER": str(site.cache)}
    stats, warnings = run(site, env=ALL | tiers, added=2)
    assert stats["value"] == 9, warnings
    assert "It stays, because it is in a lower tier." in "".join(warnings) and entries(site) == before


def test_forked_child_compiles_what_it_hits_again(home):
    """It has the counters, and what is loaded, of its parent, whose thread is gone."""
    (parent, child), warnings = run(home, programs.run_in_parent_and_child, env=ALL)
    assert "recompile matches" not in parent, "what it has compiled is new"
    assert child["recompile matches"] == 2, warnings
    assert not any("recompile differs" in each for each in (parent, child))


def test_what_was_sealed_for_another_graph_is_found_out(site):
    [wrong] = site.aot_entries
    run(site, factor=4)
    [right] = set(site.aot_entries) - {wrong}
    run(site, programs.seal_for_another, wrong=str(wrong), right=str(right))

    stats, _ = run(site, factor=4)
    assert stats["value"] == 6, "of another graph"
    stats, warnings = run(site, strict=True, env=ALL, factor=4)
    assert (stats["value"], stats["recompile differs"], stats["quarantined"]) == (8, 1, 1), warnings
    stats, _ = run(site, env=ALL, factor=4)
    assert stats["recompile matches"] == 2 and "recompile differs" not in stats
