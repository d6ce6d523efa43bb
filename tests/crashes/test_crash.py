"""What is a crash and what is not, and that whatever tunes kernels takes the error for a configuration to skip."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path

import pytest
from conftest import python

from safecache.errors import SafecacheError, TritonCompileCrash
from safecache.isolation import protocol
from safecache.isolation.client import Ending, Outcome
from safecache.isolation.crashes import Crash, diagnose_crash, make_crash

ATTRIBUTES = {"how": "signal", "signal": 6, "stage": "ptx", "kernel": "k", "config": {"N": 1}, "report": "/r"}
FAILED_PASS = {"type": "builtins.RuntimeError", "message": "PassManager::run failed", "stage": "ttgir"}


def diagnose(ending, error, stderr, stage):
    """The crash, if any, of a job that ended so in this stage."""
    reply = None if ending else {} if error is None else {"error": error}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, protocol.STAGE_FILE).write_text(stage)
        return diagnose_crash(Outcome(reply, Ending(*ending) if ending else None, stderr, 0.1), directory)


@pytest.fixture
def error():
    return make_crash("safecache: it crashed", ATTRIBUTES)


@pytest.mark.parametrize(
    "said",
    [
        "x.cpp:246: f(): Assertion `isPowerOf2(size)' failed.",
        "LLVM ERROR: Cannot select",
        "UNREACHABLE executed at a.h:779!",
        "A signal was caught while processing",
        "terminate called after throwing",
    ],
)
def test_failed_pass_that_shows_a_signal_is_a_crash(said):
    assert diagnose(None, FAILED_PASS, f"before\n{said}\nafter", "ttgir") == Crash("recovered", 0, "ttgir")


def test_failed_pass_without_one_is_an_ordinary_failure():
    assert diagnose(None, FAILED_PASS, "error: operand #0 must be a tensor", "ttgir") is None


def test_other_error_is_an_ordinary_failure_whatever_was_printed():
    error = FAILED_PASS | {"message": "shape mismatch"}
    assert diagnose(None, error, "LLVM ERROR: in a comment", "source") is None


@pytest.mark.parametrize("ending", [("signal", 11), ("exit", 127), ("timeout", 600), ("memory", 10**9)])
def test_every_end_of_a_worker_is_a_crash(ending):
    assert diagnose(ending, None, "", "llir") == Crash(*ending, "llir")


def test_result_is_no_crash():
    assert diagnose(None, None, "LLVM ERROR: as a remark", "cubin") is None


@pytest.mark.parametrize("number", [9, 15])
def test_kill_by_somebody_else_is_told_from_the_kernels_fault(number):
    crash = Crash("signal", number, "llir")
    assert crash.is_by_others and "somebody else" in crash.words


def test_error_is_ours_and_one_that_tuners_skip(error):
    from triton.runtime.errors import OutOfResources, PTXASError

    assert isinstance(error, (TritonCompileCrash, SafecacheError))
    # Triton's Autotuner._bench; CachingAutotuner; the loop of max-autotune; who catches what a compile raises today.
    assert all(isinstance(error, kind) for kind in (PTXASError, OutOfResources, RuntimeError))


def test_error_is_classified_by_helion_as_one_to_skip(error):
    """As classify_triton_exception() of helion/autotuner/logger.py does: by type, or by the name of it."""
    from triton.runtime.errors import OutOfResources

    skipped = ("OutOfResources", "PTXASError")
    assert isinstance(error, OutOfResources) and {kind.__name__ for kind in type(error).__mro__} & set(skipped)


def test_error_says_what_was_said_and_no_more(error):
    assert str(error) == error.error_message == "safecache: it crashed"
    assert type(error).__name__ == "TritonCompileCrash"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_error_survives_copies_with_all_that_it_says(error, again):
    copied = again(error)
    assert type(copied) is type(error) and str(copied) == str(error)
    assert {name: getattr(copied, name) for name in ATTRIBUTES} == ATTRIBUTES


def test_error_can_be_read_where_there_is_no_triton(error, tmp_path):
    (tmp_path / "triton.py").write_text("raise ImportError")
    code = (
        "import pickle, sys\n"
        f"error = pickle.loads({pickle.dumps(error)!r})\n"
        "print(type(error).__mro__[0].__module__, error, error.stage, error.config)\n"
    )
    done = python(code, path=tmp_path, env={"SAFECACHE": "0"})
    assert done.stdout == "safecache.errors safecache: it crashed ptx {'N': 1}\n", done.stderr
