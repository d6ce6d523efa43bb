"""Tunings of Inductor's, shared out among processes: each configuration is compiled once, and by several."""

from __future__ import annotations

import itertools
import sys

import pytest
from scenes import tuning_scenes

from single_flight.crowd import Crowd

pytest.importorskip("triton")

PREPARE = """
from scenes import tuning_scenes
tuning_scenes.autotuners.autotuner()
"""
TUNE = """
warnings.append(tuning_scenes.tune({how}))
y = torch.zeros(())
"""


@pytest.fixture
def together(home):
    """What each of some processes has come to that tune one kernel at once."""

    def tune(number, how=""):
        marks = home.base / "marks"
        marks.mkdir()
        run = TUNE.format(how=how)
        answers = Crowd(home, number, run, PREPARE, MARKS=str(marks), SAFECACHE_SINGLE_FLIGHT_WAIT="30").answers()
        return [next(each for each in answer["warnings"] if isinstance(each, dict)) for answer in answers]

    return tune


BLOCKS = [32 << number for number in range(6)]


@pytest.mark.parametrize("number", [2, 3])
def test_each_is_compiled_once_and_by_several(together, number):
    found = together(number)
    here = [each["here"] for each in found]
    assert sorted(itertools.chain(*here)) == BLOCKS and [32] in here, here
    assert all(each["blocks"] == BLOCKS and not each["error"] for each in found), found


def test_refused_one_is_left_out_by_all(together):
    found = together(3, "fails=[64, 128]")
    assert all(each["blocks"] == [32, 256, 512, 1024] and not each["error"] for each in found), found


@pytest.mark.skipif(
    (3, 11) <= sys.version_info < (3, 11, 9), reason="torch has none compiled beforehand: python/cpython#106905"
)
def test_templates_are_compiled_in_an_order_of_the_process(home):
    answer = home.run(tuning_scenes.precompile_choices, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})
    assert answer.ok and sorted(answer.result["compiled"]) == BLOCKS, answer
    assert answer.result["compiled"] == answer.result["own"] and answer.result["timed"] == 6, answer
    answer = home.run(tuning_scenes.precompile_choices, env={"SAFECACHE_SINGLE_FLIGHT": "0"})
    assert answer.ok and answer.result["compiled"] == BLOCKS, answer
