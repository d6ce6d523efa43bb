"""A kernel that Triton finds in its cache, and no process survives, is set aside by the next one, outside of Inductor too."""

from __future__ import annotations

import os
import signal

import pytest
from scenes import launch_scenes
from scenes.launch_scenes import LAUNCHED, LOADED

pytest.importorskip("triton")
WHERE = pytest.mark.parametrize("what", [LOADED, LAUNCHED], ids=["load", "launch"])

# Of a trial: what launches is the driver's, and what loads is Triton's.
NOTHING = ["_launch", False]


@pytest.fixture
def launched(home):
    """A home whose cache has a kernel."""
    answer = home.run(launch_scenes.launch)
    assert answer.ok and answer.result == {"compiled": 1, "launched": 3, "left": [NOTHING] * 3}, answer
    return home


def spoil(home, what):
    answer = home.run(launch_scenes.spoil, what=what)
    assert answer.ok and answer.result == 1, answer


def died_of(answer):
    return answer.died is not None and os.WIFSIGNALED(answer.died) and os.WTERMSIG(answer.died)


def is_cold(answer):
    is_said = len(answer.warnings) == 1 and "[crashed on first run]" in answer.warnings[0]
    return answer.ok and answer.result["compiled"] == 1 and is_said


def quarantine(home):
    return [path for path in home.base.rglob(".safecache/quarantine/*") if path.suffix != ".json"]


@WHERE
def test_stock_triton_dies_each_time_and_so_does_safecache_without_trials(launched, what):
    spoil(launched, what)
    assert [died_of(launched.run(launch_scenes.launch, stock=True)) for _ in range(2)] == [signal.SIGSEGV] * 2
    off = {"SAFECACHE_TRIALS": "0"}
    assert [died_of(launched.run(launch_scenes.launch, env=off)) for _ in range(2)] == [signal.SIGSEGV] * 2


@WHERE
@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
def test_kernel_that_ends_the_process_ends_one(launched, what, strict):
    spoil(launched, what)
    assert died_of(launched.run(launch_scenes.launch, strict=strict)) == signal.SIGSEGV
    answer = launched.run(launch_scenes.launch, strict=strict)
    if strict:
        assert answer.errors[-1:] == ["EntryRefusedError"] and "Segmentation fault" in answer.messages[-1], answer
        assert launched.run(launch_scenes.launch, strict=strict).result["compiled"] == 1
    else:
        assert is_cold(answer) and "Segmentation fault" in answer.warnings[0], answer
    assert len(quarantine(launched)) == 1
    answer = launched.run(launch_scenes.launch, strict=strict)
    assert answer.ok and answer.result["compiled"] == 0 and not answer.warnings, answer


@WHERE
def test_kernel_that_crashes_again_after_a_compile_is_not_looked_up(launched, what):
    for _ in range(2):
        spoil(launched, what)
        assert died_of(launched.run(launch_scenes.launch)) == signal.SIGSEGV
        assert is_cold(launched.run(launch_scenes.launch))
    spoil(launched, what)
    assert is_cold(launched.run(launch_scenes.launch))


def test_nothing_is_left_of_a_trial_from_the_second_launch_on(launched):
    answer = launched.run(launch_scenes.launch)
    assert answer.ok and answer.result == {"compiled": 0, "launched": 3, "left": [NOTHING] * 3}, answer
    assert not list(launched.base.rglob(".safecache/trials/*"))


def test_exception_while_a_kernel_is_loaded_counts_for_nothing(launched):
    for _ in range(3):
        answer = launched.run(launch_scenes.launch, fails=True)
        assert answer.error == "RuntimeError" and not answer.warnings, answer
    answer = launched.run(launch_scenes.launch)
    assert answer.ok and answer.result["compiled"] == 0, answer


def test_helper_that_ends_the_process_when_it_is_loaded_ends_one(home):
    assert home.run(launch_scenes.build_module).result
    assert home.run(launch_scenes.spoil_module).result == 1
    assert [died_of(home.run(launch_scenes.build_module, stock=True)) for _ in range(2)] == [signal.SIGSEGV] * 2
    assert died_of(home.run(launch_scenes.build_module)) == signal.SIGSEGV
    answer = home.run(launch_scenes.build_module)
    assert answer.ok and answer.result and len(answer.warnings) == 1, answer
    answer = home.run(launch_scenes.build_module)
    assert answer.ok and not answer.result and not answer.warnings, answer
