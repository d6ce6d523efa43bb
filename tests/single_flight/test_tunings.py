"""A kernel's configurations are shared out among the processes that tune it, and none sees any difference."""

from __future__ import annotations

import math
import os
import threading

import pytest
from conftest import python

from safecache import single_flight
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.single_flight import tuning

CONFIGS = ["first", "second", "third"]


class Tuner:
    """Compiles configurations one after the other, as torch does: one that raises a ValueError is left out.

    ``meanwhile``: what happens while one is compiled here.
    """

    def __init__(self, root, **meanwhile) -> None:
        self.root, self.meanwhile, self.here, self.asked = root, meanwhile, [], []

    def compile(self, config):
        """Find it, or compile it under a lease."""
        self.asked.append(config)
        with single_flight.compile_scope(Kind.KERNEL, math.inf):
            if not published(self.root, config).exists():
                flight = single_flight.wait_or_lead(Ref(Kind.KERNEL, config, str(self.root)))
                if flight is None or not published(self.root, config).exists():
                    self.here.append(config)
                    self.meanwhile.get(config, list)()
        return f"compiled {config}"

    def tune(self, configs=CONFIGS):
        found = []
        with tuning.share_configurations(self, configs):
            for config in configs:
                try:
                    found.append(tuning.compile_config(self, config, self.compile))
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


def test_none_is_compiled_beforehand_twice(root, other):
    one, two = other("first"), other("second")
    tuner = Tuner(root, third=lambda: (one.publish(), threading.Timer(1.0, two.publish).start()))
    assert tuner.tune() == ALL and tuner.here == ["third"]


def test_only_one_is_waited_for_at_once(root, other):
    busy, tuner = other("first"), Tuner(root)
    threading.Timer(0.2, busy.publish).start()
    assert tuner.tune(["first"]) == ALL[:1] and tuner.asked == ["first"]


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
    with tuning.share_configurations(Tuner(root), CONFIGS):  # another's
        assert tuning.compile_config(tuner, "first", tuner.compile) == ALL[0]
    busy = other("second")
    threading.Timer(0.2, busy.publish).start()
    assert tuning.compile_config(tuner, "second", tuner.compile) == ALL[1]
    assert tuner.here == []


def test_configuration_of_no_tuning_is_compiled(root):
    tuner = Tuner(root)
    with tuning.share_configurations(tuner, CONFIGS[:2]):
        for config in ("scaled", "first", "second", "third"):
            assert tuning.compile_config(tuner, config, tuner.compile) == f"compiled {config}"
    assert tuner.here == tuner.asked == ["scaled", *CONFIGS]


def test_switched_off_all_is_compiled_in_order(root, other, settings):
    other("first")
    settings(SAFECACHE_SINGLE_FLIGHT=0)
    tuner = Tuner(root)
    assert tuner.tune() == ALL and tuner.here == CONFIGS


CHOICES = [f"choice {number}" for number in range(20)]
ORDER = f"from safecache.single_flight import tuning; print(tuning.order_for_process({CHOICES}, str))"


def test_each_process_has_an_order_of_its_own_and_keeps_to_it():
    own = tuning.order_for_process(CHOICES, str)
    assert sorted(own) == sorted(CHOICES) and own == tuning.order_for_process(CHOICES[::-1], str) != CHOICES
    assert python(ORDER).stdout.strip() != str(own)
    assert tuning.order_for_process(["b 2", "a 1", "b 1"], lambda choice: choice[0]) in (
        ["b 2", "b 1", "a 1"],
        ["a 1", "b 2", "b 1"],
    )


def test_forked_process_has_another_order():
    answer, to_answer = os.pipe()
    if os.fork() == 0:
        os.write(to_answer, str(tuning.order_for_process(CHOICES, str)).encode())
        os._exit(0)
    os.close(to_answer)
    with open(answer) as file:
        assert file.read() != str(tuning.order_for_process(CHOICES, str))
    os.wait()


def test_switched_off_the_order_is_as_given(settings):
    settings(SAFECACHE_SINGLE_FLIGHT=0)
    assert tuning.order_for_process(CHOICES, str) == CHOICES
