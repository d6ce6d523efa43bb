"""@triton.autotune has its configurations compiled at the same time, and sees nothing of it but the time it takes."""

from __future__ import annotations

import itertools

import pytest

from crashes import tuning_scenes
from crashes.conftest import Home

SOUND, DEADLY, DEADLY_TOO, SOUND_TOO = 0, 1, 2, 3
ONE_BY_ONE = {"SAFECACHE_PREFETCH": "0"}


def tuned(home, scene=tuning_scenes.tune, env=None, **arguments):
    return home.run(scene, env=env, **arguments)


def cached(home):
    """What is in the cache, by path; lists of files name the cache's own path."""
    paths = [path for path in home.cache.rglob("*") if path.is_file()]
    named = {str(path.relative_to(home.cache)): path.read_bytes() for path in paths if ".safecache" not in path.parts}
    return {name: content.replace(str(home.base).encode(), b"") for name, content in named.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A tuning with its compiles ahead, and one without."""
    homes = [Home(tmp_path_factory.mktemp(name)) for name in ("ahead", "one-by-one")]
    kinds = [DEADLY, SOUND, DEADLY_TOO, SOUND_TOO]
    answers = [tuned(home, env=env, kinds=kinds, launches=3) for home, env in zip(homes, ({}, ONE_BY_ONE), strict=True)]
    return list(zip(homes, answers, strict=True))


def test_all_configurations_are_compiled_when_the_first_is_wanted(both):
    (_, ahead), (_, one_by_one) = both
    # And each that has crashed once more, in its turn.
    assert runs(ahead.result["log"]) == [4 + 1, 1]
    assert max(runs(one_by_one.result["log"])) == 2


def test_result_and_order_are_those_of_a_tuning_one_by_one(both):
    (_, ahead), (_, one_by_one) = both
    for answer in (ahead, one_by_one):
        answer.steps = [step for step in answer.result["log"] if step != "compile"]
    assert ahead.steps == one_by_one.steps
    assert ahead.steps.count("bench") == 4 and ahead.steps.count("launch") == 2 + 3
    assert ahead.result["best"] == one_by_one.result["best"] == SOUND_TOO
    infinite = [{k for k, t in answer.result["timings"].items() if t == "inf"} for answer in (ahead, one_by_one)]
    assert infinite == [{"1", "2"}] * 2 and ahead.stats["compile crashed"] == 2
    assert [text.split(" is ")[0] for text in ahead.warnings] == [text.split(" is ")[0] for text in one_by_one.warnings]


def test_cache_holds_the_same(both):
    (home, ahead), (other, one_by_one) = both
    assert cached(home) == cached(other) and ahead.stats == one_by_one.stats
    assert [path.name for path in home.notes] == [path.name for path in other.notes] != []


def test_nothing_is_left_running_but_the_service(both):
    (_, ahead), _ = both
    # What renews leases ends half a second after the last one.
    assert set(ahead.result["threads"]) <= {"safecache-leases"}


def test_process_that_hits_starts_nothing(both):
    (home, _), _ = both
    answer = tuned(home, kinds=[SOUND, SOUND_TOO])
    assert answer.result["log"].count("bench") == 2 and "compile" not in answer.result["log"]
    assert answer.children == 0 and "compiled in isolation" not in answer.stats, answer.stats


def runs(log):
    """How many compiles there were in a row, each time."""
    return [len(list(group)) for what, group in itertools.groupby(log) if what == "compile"]


def test_users_functions_are_called_as_without_and_choose_what_is_compiled(home, tmp_path):
    logs = []
    for env in ({}, ONE_BY_ONE):
        env = env | {"TRITON_CACHE_DIR": str(tmp_path / f"cache{len(logs)}")}
        log = tuned(home, tuning_scenes.tune_with_everything, env=env, kinds=[SOUND, SOUND_TOO, 4, 5, 6]).result["log"]
        assert runs(log) == ([1, 1, 1] if logs else [3])
        logs.append([step for step in log if step != "compile"])
    assert logs[0] == logs[1]


def test_heuristics_are_asked_and_hooks_called_in_their_turn(home):
    """Nothing is compiled ahead where a hook has a say."""
    logs = home.run(tuning_scenes.tune_with_hooks).result
    assert {name: runs(log) for name, log in logs.items()} == {
        "heuristics": [3],
        "kernel": [1, 1, 1],
        "shape": [1, 1, 1],
        "configuration": [3],
    }
    assert logs["kernel"].count("before the run") == 4
    log = logs["configuration"]
    assert log.count("its own") == 4 and log[:3] == ["bench", "its own", "compile"]


def test_only_configuration_that_crashes_is_the_users_error(home):
    assert home.run(tuning_scenes.tune_what_crashes, kind=DEADLY).result == "TritonCompileCrash"


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_tuning_that_ends_early_leaves_nothing_and_can_be_done_again(home, tmp_path, error):
    (tmp_path / "temporary").mkdir()
    env = {"TMPDIR": str(tmp_path / "temporary")}
    answer = tuned(home, tuning_scenes.tune_until, env=env, kinds=[SOUND, SOUND_TOO, 4, 5], error=error)
    log = answer.result["log"]
    assert "enough" in log and log.count("compile") == 4 + 2 and answer.result["threads"] == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_known_result_of_a_tuning_has_only_its_kernel_compiled(home):
    env = {"TRITON_CACHE_AUTOTUNING": "1"}
    first = tuned(home, env=env, kinds=[SOUND, SOUND_TOO, 4])
    assert first.result["log"].count("compile") == 3
    for folder in home.cache.iterdir():
        for path in folder.glob("some_configurations.json") if folder.is_dir() else ():
            path.unlink()
    again = tuned(home, env=env, kinds=[SOUND, SOUND_TOO, 4])
    assert again.result["log"] == ["compile", "launch"] and again.result["best"] == first.result["best"]
