"""State of a module: anew at reset(), and in a forked child unless that inherits it."""

from __future__ import annotations

import os

import pytest
from conftest import python

from safecache import session
from safecache.session import Part


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """No part of the package's own is made anew here."""
    monkeypatch.setattr(session, "_known", [])


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


AT_EXIT = """
import multiprocessing, os, sys
from safecache import session
def work():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid() == PARENT}\\n")
def child():
    session.call_at_exit(work)
PARENT = os.getpid()
session.call_at_exit(work)
process = multiprocessing.get_context(sys.argv[2]).Process(target=child)
process.start()
process.join()
"""


def test_work_at_exit_is_done_by_a_process_and_by_its_child_of_multiprocessing(tmp_path):
    out = tmp_path / "out"
    assert python(AT_EXIT, arguments=(str(out), "fork"), env={"SAFECACHE": "0"}).returncode == 0
    assert out.read_text().split() == ["False", "True"]
