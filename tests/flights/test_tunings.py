"""A kernel's configurations are shared out among the processes that tune it, and none sees any difference."""

from __future__ import annotations

import itertools
import math
import threading

import pytest
from conftest import SOURCE
from helpers.together import Together

from safecache.flights import scopes, tuning
from safecache.reporting.kinds import Kind

CONFIGS = ["first", "second", "third"]


class Tuner:
    """Compiles configurations one after the other, as torch does: one that raises a ValueError is left out.

    ``meanwhile``: what happens while one is compiled here.
    """

    def __init__(self, root, **meanwhile) -> None:
        self.root, self.meanwhile, self.here = root, meanwhile, []

    def compile(self, config):
        """Find it, or compile it under a lease."""
        with scopes.scope(Kind.KERNEL, math.inf):
            if not published(self.root, config).exists():
                flight = scopes.enter(Kind.KERNEL, config, str(self.root))
                if flight is None or not published(self.root, config).exists():
                    self.here.append(config)
                    self.meanwhile.get(config, list)()
        return f"compiled {config}"

    def tune(self):
        found = []
        with tuning.of(self, CONFIGS):
            for config in CONFIGS:
                try:
                    found.append(tuning.compiled(self, config, self.compile))
                except ValueError:
                    continue
        return found


def published(root, config):
    return root / f"published {config}"


@pytest.fixture
def other(root, flyer, settings):
    """Another process, which compiles a configuration, and holds it until it is told to publish it."""
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=20)

    def compile(config):
        process = flyer(root, "KERNEL", config)
        assert process.says() == "holds"
        process.publish = lambda: (published(root, config).touch(), process.process.kill())
        return process

    return compile


def raising(error):
    def fail():
        raise error

    return fail


ALL = [f"compiled {config}" for config in CONFIGS]


def test_alone_each_is_compiled_on_its_turn(root):
    tuner = Tuner(root)
    assert tuner.tune() == ALL and tuner.here == CONFIGS


def test_what_another_compiles_comes_last_and_results_are_in_order(root, other):
    busy = other("first")
    tuner = Tuner(root, third=busy.publish)
    assert tuner.tune() == ALL and tuner.here == ["second", "third"]


def test_what_a_process_that_died_had_is_compiled_here(root, other):
    dies = other("second")
    tuner = Tuner(root, third=dies.process.kill)
    assert tuner.tune() == ALL and tuner.here == ["first", "third", "second"]


def test_error_beforehand_is_raised_on_its_turn(root, other):
    busy = other("first")
    refused = Tuner(root, second=raising(ValueError()), third=busy.publish)
    assert refused.tune() == [ALL[0], ALL[2]] and refused.here == ["second", "third"]
    published(root, "first").unlink()
    busy = other("first")
    broken = Tuner(root, second=raising(OSError("broken")), third=busy.publish)
    with pytest.raises(OSError, match="broken"):
        broken.tune()
    assert broken.here == ["second", "third"]


def test_error_beforehand_is_not_raised_if_one_before_it_ends_the_tuning(root, other):
    dies = other("first")
    tuner = Tuner(root, first=raising(KeyError("sooner")), second=raising(OSError("later")))
    tuner.meanwhile["third"] = dies.process.kill
    with pytest.raises(KeyError, match="sooner"):
        tuner.tune()


def test_wait_in_no_tuning_of_its_own_is_not_cut_short(root, other):
    busy, tuner = other("first"), Tuner(root)
    threading.Timer(0.2, busy.publish).start()
    with tuning.of(Tuner(root), CONFIGS):  # another's
        assert tuning.compiled(tuner, "first", tuner.compile) == ALL[0]
    busy = other("second")
    threading.Timer(0.2, busy.publish).start()
    assert tuning.compiled(tuner, "second", tuner.compile) == ALL[1]
    assert tuner.here == []


def test_configuration_of_no_tuning_is_compiled(root):
    tuner = Tuner(root)
    with tuning.of(tuner, CONFIGS):
        assert tuning.compiled(tuner, "scaled", tuner.compile) == "compiled scaled"
        assert tuning.compiled(tuner, "first", tuner.compile) == ALL[0]


def test_switched_off_all_is_compiled_in_order(root, other, settings):
    other("first")
    settings(SAFECACHE_SINGLE_FLIGHT=0)
    tuner = Tuner(root)
    assert tuner.tune() == ALL and tuner.here == CONFIGS


PREPARE = f"""
sys.path.insert(0, {str(SOURCE / "tests")!r})
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
    pytest.importorskip("triton")

    def tune(number, how=""):
        marks = home.base / "marks"
        marks.mkdir()
        run = TUNE.format(how=how)
        with Together(home, number, run, PREPARE, MARKS=str(marks), SAFECACHE_SINGLE_FLIGHT_WAIT="30") as processes:
            processes.begin()
            answers = processes.answers()
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
