"""What a cache supplies and no process survives is set aside by the next one; stock torch dies of it each time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import WARM
from scenes import model_scenes, trial_scenes
from scenes.trial_scenes import COMPLAIN, FAIL, INTERRUPT, KILL, KILL_IF_TOLD, RUN_OUT, SEGFAULT

pytestmark = pytest.mark.xdist_group("crash loops")


@pytest.fixture(scope="module")
def inferred(new_home):
    """A home whose cache has the entries of the model."""
    home = new_home()
    answer = infer(home)
    assert answer.ok, answer
    return home


@pytest.fixture
def good(home, inferred):
    shutil.copytree(inferred.base, home.base, dirs_exist_ok=True, symlinks=True)
    return home


@pytest.fixture
def planted(good):
    """A home whose cache has entries of the model that do something else first."""

    def plant(what, where="run"):
        spoiled = good.run(trial_scenes.spoil, what=what, where=where)
        assert spoiled.ok and spoiled.result, spoiled
        return good

    return plant


def died_of(answer):
    return answer.died is not None and os.WIFSIGNALED(answer.died) and os.WTERMSIG(answer.died)


def struck_keys(home):
    """How many strikes there are against each key, whose record is sealed by the home's own key."""
    code = (
        "import json, sys; from safecache.crash_guard import strikes; print(json.dumps(strikes.read(sys.argv[1]).keys))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(home.cache)], env=home.environment, capture_output=True, text=True, check=True
    )
    return [number for number, _ in json.loads(said.stdout).values()]


def infer(home, **arguments):
    return home.run(trial_scenes.infer, **arguments)


def is_cold(answer):
    """It has compiled, and said so in one line."""
    is_said = len(answer.warnings) == 1 and "[crashed on first run]" in answer.warnings[0]
    return answer.ok and answer.result["hits"] == 0 and is_said


def is_warm(answer):
    return answer.ok and answer.result["hits"] == 1 and not answer.warnings


def test_stock_torch_dies_each_time_and_so_does_safecache_without_trials(planted):
    home = planted(SEGFAULT)
    assert [died_of(infer(home, stock=True)) for _ in range(3)] == [signal.SIGSEGV] * 3
    assert [died_of(infer(home, env={"SAFECACHE_TRIALS": "0"})) for _ in range(3)] == [signal.SIGSEGV] * 3
    assert not home.quarantined


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("where", ["run", "import"])
def test_entry_that_ends_the_process_ends_one(planted, where, strict):
    home = planted(SEGFAULT, where)
    assert died_of(infer(home, strict=strict)) == signal.SIGSEGV
    answer = infer(home, strict=strict)
    if strict:
        assert answer.errors[-1:] == ["EntryRefusedError"] and "Segmentation fault" in answer.messages[-1], answer
        assert infer(home, strict=strict).result["hits"] == 0
    else:
        assert is_cold(answer) and "Segmentation fault" in answer.warnings[0], answer
    assert home.quarantined
    again = infer(home, strict=strict)
    assert is_warm(again), again


def test_each_library_that_ends_the_process_when_it_is_loaded_ends_one(good):
    """The second is met by the compile that the first has led to."""
    number = good.run(trial_scenes.spoil_libraries).result
    assert number == 2
    assert [died_of(infer(good)) for _ in range(number)] == [signal.SIGSEGV] * number
    answer = infer(good)
    assert is_cold(answer), answer
    assert [path for path in good.quarantined if ".so." in path.name]
    assert is_warm(infer(good))


def test_backward_graph_that_ends_the_process_ends_one(warm):
    assert warm.run(trial_scenes.spoil, what=SEGFAULT).ok
    died = 0
    while not (answer := warm.run(model_scenes.compile_model)).ok:
        assert died_of(answer) == signal.SIGSEGV
        died += 1
    # The forward graph first, then, of what was there, the backward graph.
    assert died <= 2 and len(answer.warnings) == 1, answer
    assert warm.run(model_scenes.compile_model).hits[0] == 1


def test_backward_graph_that_is_looked_up_by_itself_ends_one_process(warm):
    """AOTAutograd does so when it has compiled the forward graph, since the entry of both is gone."""
    for entry in warm.aot_entries:
        entry.unlink()
    assert len(warm.run(trial_scenes.spoil, what=SEGFAULT, is_backward=True).result) == 1
    assert died_of(warm.run(model_scenes.compile_model)) == signal.SIGSEGV
    answer = warm.run(model_scenes.compile_model)
    # That of both was saved again, before the backward graph ran.
    assert answer.ok and answer.hits == (0, 2) and len(answer.warnings) == 1, answer
    assert warm.run(model_scenes.compile_model).hits == WARM


def test_death_of_which_nothing_is_left_counts_once_it_happens_again(planted):
    home = planted(KILL)
    assert [died_of(infer(home)) for _ in range(2)] == [signal.SIGKILL] * 2
    assert not home.quarantined
    assert is_cold(infer(home)) and home.quarantined
    assert is_warm(infer(home))


def test_run_that_ends_well_takes_back_a_strike(planted):
    home = planted(KILL_IF_TOLD)
    for _ in range(3):
        assert died_of(infer(home, env={"KILL_ME": "1"})) == signal.SIGKILL
        assert is_warm(infer(home))
    assert not home.quarantined and not struck_keys(home)


def test_faulthandler_of_the_program_is_left_to_it(planted):
    home = planted(SEGFAULT)
    mine = home.base / "mine"
    for _ in range(2):
        assert died_of(infer(home, faulthandler_to=str(mine))) == signal.SIGSEGV
        assert "Segmentation fault" in mine.read_text() and not home.quarantined
    answer = infer(home, faulthandler_to=str(mine))
    assert is_cold(answer) and answer.result["faulthandler"], answer


def test_faulthandler_is_as_it_was_after_a_trial(good):
    answer = infer(good)
    assert is_warm(answer) and not answer.result["faulthandler"], answer


def test_exception_of_the_code_itself_sets_it_aside(planted):
    home = planted(FAIL)
    answer = infer(home)
    assert "AssertionError" in answer.errors and "expected size 8 == 9" in answer.messages[0], answer
    assert len(answer.warnings) == 1 and "[failed on first run]" in answer.warnings[0], answer
    assert home.quarantined
    again = infer(home)
    assert again.ok and again.result["hits"] == 0 and not again.warnings, again
    assert is_warm(infer(home))


def test_exception_while_it_is_loaded_is_a_miss(planted):
    home = planted(FAIL, "import")
    answer = infer(home)
    assert answer.ok and answer.result["hits"] == 0, answer
    assert len(answer.warnings) == 1 and "[failed on first run]" in answer.warnings[0], answer
    assert is_warm(infer(home))


def test_exception_that_may_be_due_to_what_it_was_given_counts_once_it_happens_again(planted):
    home = planted(COMPLAIN)
    assert not infer(home).ok and not home.quarantined
    assert not infer(home).ok and home.quarantined
    answer = infer(home)
    assert answer.ok and answer.result["hits"] == 0 and not answer.warnings, answer


@pytest.mark.parametrize("what", [RUN_OUT, INTERRUPT])
def test_exception_that_is_no_fault_of_the_code_counts_for_nothing(planted, what):
    home = planted(what)
    for _ in range(3):
        answer = infer(home)
        assert not answer.ok and not answer.warnings, answer
    assert not home.quarantined


def test_key_that_crashes_again_after_a_compile_is_not_looked_up(planted):
    """As where what is saved differs from what was compiled: else every second start would die."""
    home = planted(SEGFAULT)
    assert died_of(infer(home)) == signal.SIGSEGV
    assert is_cold(infer(home))
    assert home.run(trial_scenes.spoil, what=SEGFAULT).result
    assert died_of(infer(home)) == signal.SIGSEGV
    for _ in range(3):
        assert is_cold(infer(home))
        assert home.run(trial_scenes.spoil, what=SEGFAULT).ok
    assert is_cold(infer(home))
    command = [sys.executable, "-m", "safecache", "forget", "--all", "--in", str(home.cache)]
    subprocess.run(command, env=home.environment, check=True)
    assert is_warm(infer(home))


def test_processes_that_die_together_are_one_strike_and_those_after_them_live(planted):
    home = planted(SEGFAULT)
    first = home.run(trial_scenes.infer_at_once, number=8)
    # Those that come late on a machine with few cores have seen the first die.
    assert first.ok and set(first.result["ended"]) <= {0, signal.SIGSEGV}, first
    assert signal.SIGSEGV in first.result["ended"], first
    second = home.run(trial_scenes.infer_at_once, number=8)
    assert second.ok and second.result["ended"] == [0] * 8, second
    assert is_warm(infer(home))
    assert 4 not in struck_keys(home)


def test_process_that_looked_before_the_last_strike_died_together_with_the_others(planted):
    home = planted(SEGFAULT)
    assert home.run(trial_scenes.infer_late).result == [signal.SIGSEGV, 0, signal.SIGSEGV]
    assert is_cold(infer(home))
    assert is_warm(infer(home))
    assert 4 not in struck_keys(home)


def test_entry_in_a_cache_that_cannot_be_written_is_passed_over(planted):
    home = planted(SEGFAULT)
    for path in [home.cache, *home.cache.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    assert died_of(infer(home, unprivileged=True)) == signal.SIGSEGV
    for _ in range(2):
        answer = infer(home, unprivileged=True)
        assert answer.ok and answer.result["hits"] == 0, answer
        said = [line for line in answer.warnings if "[crashed on first run]" in line]
        assert len(said) == 1 and len(answer.warnings) == 2, answer


def test_nothing_is_left_of_a_trial_from_the_second_run_on(good):
    answer = good.run(trial_scenes.infer_twice)
    assert answer.ok and answer.result[0] == "safecache.crash_guard", answer
    assert not any(module.startswith("safecache") for module in answer.result[1:]), answer


def test_process_that_was_killed_later_leaves_nothing_against_the_cache(good):
    for _ in range(2):  # each ends without what atexit does
        answer = infer(good, files=True)
        assert is_warm(answer) and answer.result["markers"] == [[]], answer
    assert not good.quarantined and not struck_keys(good)
