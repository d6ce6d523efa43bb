"""All waits in vain of a process end after the one limit of the user, and of a rank after half of its group's."""

from __future__ import annotations

import os

import pytest

from safecache.reporting import waits


@pytest.fixture(autouse=True)
def group(monkeypatch):
    """Have this process be one of a group for the rest of the test, if that is set."""
    monkeypatch.setattr(waits, "_find_group", None)


def test_waits_in_vain_end_after_one_limit():
    assert waits.get_remaining_seconds(300) == 300
    waits.charge(2, in_vain=True)
    waits.charge(200, in_vain=True)
    assert waits.get_remaining_seconds(300) == 98
    assert waits.get_remaining_seconds(120) == 0


def test_wait_that_got_something_costs_nothing():
    waits.charge(200, in_vain=False)
    assert waits.get_remaining_seconds(300) == 300


def test_rank_has_one_budget_between_two_collectives():
    collectives = 7
    waits.set_group(lambda: (20.0, collectives))
    assert waits.get_remaining_seconds(300) == 20
    waits.charge(15, in_vain=False)
    assert waits.get_remaining_seconds(300) == 5
    waits.charge(15, in_vain=True)
    assert waits.get_remaining_seconds(300) == 0
    collectives = 8
    assert waits.get_remaining_seconds(300) == 20
    assert waits.get_remaining_seconds(30) == 15  # what was in vain stays spent


def test_wait_that_got_something_late_is_refunded():
    waits.charge(200, in_vain=True)
    waits.refund(150)
    assert waits.get_remaining_seconds(300) == 250


def test_spent_budget_is_told_once(caplog):
    waits.charge(300, in_vain=True)
    assert not caplog.messages
    assert waits.get_remaining_seconds(300) == waits.get_remaining_seconds(300) == 0
    (line,) = caplog.messages
    assert "waited 300 s in vain" in line and "SAFECACHE_WAIT" in line


def test_rank_that_has_waited_tells_so_once(caplog):
    waits.set_group(lambda: (20.0, 1))
    waits.charge(20, in_vain=False)
    assert waits.get_remaining_seconds(300) == waits.get_remaining_seconds(300) == 0
    (line,) = caplog.messages
    assert "waited 20 s" in line and "collective" in line


def test_reset_and_fork_begin_anew():
    waits.charge(250, in_vain=True)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, str(waits.get_remaining_seconds(300)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(reader, 64)) == 300
    assert waits.get_remaining_seconds(300) == 50
    waits._state.reset()
    assert waits.get_remaining_seconds(300) == 300
