"""State of a module: anew at reset(), and in a forked child unless that inherits it."""

from __future__ import annotations

import os

import pytest

from safecache import session
from safecache.session import Part


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """No part of the package's own is made anew here."""
    monkeypatch.setattr(session, "_parts", [])


def in_child(function):
    pid = os.fork()
    if pid == 0:
        os._exit(function())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Ended(list):
    def end(self):
        self.append("ended")


def test_reset_makes_each_part_anew_and_ends_the_old():
    plain, ended = Part(list), Part(Ended)
    plain.now.append(1)
    before = ended.now
    session.reset()
    assert (plain.now, ended.now, before) == ([], [], ["ended"])


@pytest.mark.parametrize(
    ("kept", "length"),
    [(None, 0), (session.inherit, 1), (lambda state: [*state, 2], 2)],
    ids=["anew", "inherited", "made of it"],
)
def test_child_begins_with_the_state_that_its_part_says(kept, length):
    part = Part(list, kept)
    part.now.append(1)
    assert in_child(lambda: len(part.now)) == length
    assert part.now == [1]
