"""Each lookup comes to one outcome with one reason, and their sums are what torch counts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from scenes import artifact_scenes, lookup_scenes, model_scenes
from scenes.ir import SEVEN

OUTCOMES = ("hit", "miss", "bypass")
HITS = {"aot hit": 1, "fx hit": 2}


def sums(answer, *, besides=()):
    """By cache and outcome, without the reasons ``besides``; each lookup has one, but for a hit."""
    found = {layer: dict.fromkeys(OUTCOMES, 0) for layer in ("aot", "fx", "triton", "model")}
    for label, count in answer.result["lookups"].items():
        what, _, reason = label.partition(": ")
        layer, outcome = what.split(" ")
        assert bool(reason) is (outcome != "hit"), label
        if reason not in besides:
            found[layer][outcome] += count
    return found


def agrees(answer, **how):
    found = sums(answer, **how)
    counted = {layer: dict.fromkeys(OUTCOMES, 0) | counts for layer, counts in answer.result["torch"].items()}
    assert {layer: found[layer] for layer in counted} == counted, answer
    return answer.result["lookups"]


def damage(path):
    path.write_bytes(path.read_bytes()[:-200])


def test_cold_start_misses_what_was_never_seen_and_the_warm_one_hits(home):
    cold = {"aot miss: never seen": 1, "fx miss: never seen": 2}
    assert agrees(home.run(lookup_scenes.looked_up)) == cold
    assert agrees(home.run(lookup_scenes.looked_up)) == {"aot hit": 1, "fx hit": 2}


@pytest.mark.parametrize("kind", ["aot", "fx"])
def test_entry_that_was_refused_is_why_its_lookup_missed(warm, kind):
    damage(warm.entries(kind)[0])
    found = agrees(warm.run(lookup_scenes.looked_up))
    # A graph is looked up for the AOTAutograd entry, which is nothing without it, and again to compile it.
    expected = {"aot": {"aot miss: damaged": 1}, "fx": {"aot miss: missing entry": 1, "fx miss: damaged": 2}}
    assert {label: count for label, count in found.items() if "miss" in label} == expected[kind]


def test_entry_whose_graph_is_gone_misses_for_that(warm):
    for entry in warm.fx_entries:
        shutil.rmtree(entry.parent)
    found = agrees(warm.run(lookup_scenes.looked_up))
    assert found["aot miss: missing entry"] == 1 and "fx miss: evicted" in found


def test_strict_torch_that_meets_a_missing_graph_makes_one_lookup_of_two(warm):
    for entry in warm.fx_entries:
        shutil.rmtree(entry.parent)
    found = warm.run(lookup_scenes.looked_up, how=lookup_scenes.compile_strictly).result["lookups"]
    assert [label for label in found if label.startswith("aot")] == ["aot miss: key differs"]


def test_entries_of_another_key_are_why_their_lookups_missed(warm):
    secret = warm.base / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o400)
    found = agrees(warm.run(lookup_scenes.looked_up, env={"SAFECACHE_KEY_FILE": str(secret)}))
    assert found == {"aot miss: unknown key": 1, "fx miss: unknown key": 2}


def test_directory_that_cannot_be_read_is_why_its_lookup_missed(warm):
    folder = warm.aot_entries[0].parent
    folder.chmod(0)
    found = agrees(warm.run(lookup_scenes.looked_up, unprivileged=True))
    folder.chmod(0o755)
    assert found["aot miss: unreadable"] == 1 and found["fx hit"] == 2


def test_remote_cache_that_fails_is_why_its_lookups_missed(home):
    found = agrees(home.run(lookup_scenes.looked_up, how=model_scenes.compile_with_remote))
    assert found == {"aot miss: remote failed": 1, "fx miss: remote failed": 2}
    mended = {"how": model_scenes.compile_with_remote, "directory": str(home.base)}
    shutil.rmtree(home.cache)
    assert agrees(home.run(lookup_scenes.looked_up, **mended)) == {"aot miss: never seen": 1, "fx miss: never seen": 2}
    shutil.rmtree(home.cache)
    assert agrees(home.run(lookup_scenes.looked_up, **mended)) == HITS


def test_entry_that_torch_cannot_use_is_why_its_lookups_missed(warm):
    found = agrees(warm.run(lookup_scenes.looked_up, how=lookup_scenes.compile_where_code_cannot_be_loaded))
    assert found == {"aot miss: missing entry": 1, "fx miss: unloadable": 3}
    assert agrees(warm.run(lookup_scenes.looked_up)) == HITS


def test_hit_that_another_rank_has_not_is_a_miss(warm, zygote):
    if not zygote.torch.startswith("2.15"):
        pytest.skip("ranks decide for themselves before torch 2.15")
    # The setting is part of the key.
    warm.run(lookup_scenes.looked_up, how=lookup_scenes.compile_where_another_rank_missed)
    found = agrees(warm.run(lookup_scenes.looked_up, how=lookup_scenes.compile_where_another_rank_missed))
    assert found == {"aot miss: other rank missed": 1, "fx hit": 2}


def test_guard_that_does_not_hold_is_why_a_lookup_missed(home):
    first = agrees(home.run(lookup_scenes.looked_up, how=lookup_scenes.compile_for_size, size=4))
    assert first == {"aot miss: never seen": 1, "fx miss: never seen": 1}
    second = agrees(home.run(lookup_scenes.looked_up, how=lookup_scenes.compile_for_size, size=20))
    assert second == {"aot miss: guard failed": 1, "fx miss: guard failed": 1}
    for size in (5, 21):
        served = agrees(home.run(lookup_scenes.looked_up, how=lookup_scenes.compile_for_size, size=size))
        assert served == {"aot hit": 1, "fx hit": 1}, size


def test_what_torch_declines_to_cache_is_a_bypass(warm):
    found = agrees(warm.run(lookup_scenes.looked_up, how=lookup_scenes.compile_with_a_pass))
    assert found == {"aot bypass: upstream bypass": 1, "fx bypass: upstream bypass": 2}
    assert agrees(warm.run(lookup_scenes.looked_up)) == HITS, "without that pass"


SETTINGS = {
    "all": ({"inductor": {"force_disable_caches": True}}, {"aot bypass: disabled": 1, "fx bypass: disabled": 2}),
    "aot": ({"functorch": {"enable_autograd_cache": False}}, {"aot bypass: disabled": 1, "fx hit": 2}),
    "fx": (
        {"inductor": {"fx_graph_cache": False}, "functorch": {"enable_autograd_cache": False}},
        {"aot bypass: disabled": 1, "fx bypass: disabled": 2},
    ),
}


@pytest.mark.parametrize("which", SETTINGS)
def test_cache_that_a_setting_turns_off_is_bypassed(warm, which):
    arguments, expected = SETTINGS[which]
    answer = warm.run(lookup_scenes.looked_up, how=lookup_scenes.compile_without_caches, **arguments)
    assert agrees(answer, besides=("disabled",)) == expected, answer
    assert agrees(warm.run(lookup_scenes.looked_up)) == HITS, "once it is unset"


@pytest.mark.parametrize("fmt", ["binary", "unpacked"])
def test_standalone_artifact_is_looked_up_once(home, fmt):
    place = str(home.base / "artifact")
    assert home.run(model_scenes.standalone, save=place, fmt=fmt).ok
    found = home.run(lookup_scenes.looked_up, how=model_scenes.load_standalone, path=place, fmt=fmt)
    assert found.result["lookups"] == {"aot hit": 1, "fx hit": 1} and not found.result["error"], found


@pytest.mark.parametrize("what", ["function", "model"])
def test_file_that_was_compiled_ahead_of_time_is_a_lookup_each_time_that_it_is_loaded(home, what):
    path, stock = str(home.base / "whole"), str(home.base / "stock")
    save, load = (getattr(artifact_scenes, f"{verb}_{what}") for verb in ("save", "load"))
    assert home.run(save, path=path).ok and home.run(save, path=stock, stock=True).ok
    assert agrees(home.run(lookup_scenes.ahead_of_time, given=[(load, path)] * 2)) == {"model hit": 2}

    unloadable = home.run(lookup_scenes.ahead_of_time, given=[(load, path)], broken=True)
    assert agrees(unloadable) == {"model miss: unloadable": 1} and unloadable.result["errors"] == ["RuntimeError"]

    damaged = str(home.base / "damaged")
    shutil.copy(path, damaged)
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(damaged).write_bytes(content)
    refused = home.run(lookup_scenes.ahead_of_time, given=[(load, damaged), (load, path), (load, stock)])
    assert agrees(refused) == {"model miss: damaged": 1, "model hit": 1, "model miss: unsealed": 1}
    assert refused.result["errors"] == ["RefusedArtifactError", None, "RefusedArtifactError"]
    lines = [
        json.loads(line) for path in home.cache.glob(".safecache/journal/*") for line in path.read_text().splitlines()
    ]
    names = {line["reason"]: line["name"] for line in lines if line.get("layer") == "model"}
    assert names["damaged"] == (damaged if what == "function" else "scenes.models.Module"), names


@pytest.mark.parametrize("isolate", ["0", "1"])
def test_kernel_of_a_file_is_looked_up_once_wherever_it_is_compiled(home, isolate):
    pytest.importorskip("triton")
    path = home.base / "seven.ttir"
    path.write_text(SEVEN)
    how = {"path": str(path), "env": {"SAFECACHE_ISOLATE": isolate}}
    cold = home.run(lookup_scenes.kernels_counted_by_triton, **how)
    assert agrees(cold) == {"triton miss: never seen": 2}
    assert cold.stats.get("compiled in isolation", 0) == 2 * int(isolate)
    assert agrees(home.run(lookup_scenes.kernels_counted_by_triton, **how)) == {"triton hit": 2}
    path.write_text(SEVEN.replace("7", "8"))
    assert agrees(home.run(lookup_scenes.kernels_counted_by_triton, **how)) == {
        "triton miss: key differs": 1,
        "triton hit": 1,
    }
    for cubin in list(home.base.rglob("@seven.cubin")):
        shutil.rmtree(cubin.parent)
    assert agrees(home.run(lookup_scenes.kernels_counted_by_triton, **how)) == {
        "triton miss: evicted": 1,
        "triton hit": 1,
    }
