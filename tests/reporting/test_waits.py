"""All waits in vain of a process end after the one limit of the user, and of a rank after half of its group's."""

from __future__ import annotations

import os

import pytest

from safecache.reporting import waits


@pytest.fixture(autouse=True)
def no_group():
    yield
    waits.set_group(lambda: None)


def test_waits_in_vain_end_after_one_limit():
    assert waits.remaining(300) == 300
    waits.charge(2, in_vain=True)
    waits.charge(200, in_vain=True)
    assert waits.remaining(300) == 98
    assert waits.remaining(120) == 0


def test_wait_that_got_something_costs_nothing():
    waits.charge(200, in_vain=False)
    assert waits.remaining(300) == 300


def test_rank_has_one_budget_between_two_collectives():
    collectives = 7
    waits.set_group(lambda: (20.0, collectives))
    assert waits.remaining(300) == 20
    waits.charge(15, in_vain=False)
    assert waits.remaining(300) == 5
    waits.charge(15, in_vain=True)
    assert waits.remaining(300) == 0
    collectives = 8
    assert waits.remaining(300) == 20
    assert waits.remaining(30) == 15  # what was in vain stays spent


def test_reset_and_fork_begin_anew():
    waits.charge(250, in_vain=True)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, str(waits.remaining(300)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(reader, 64)) == 300
    assert waits.remaining(300) == 50
    waits.reset()
    assert waits.remaining(300) == 300
