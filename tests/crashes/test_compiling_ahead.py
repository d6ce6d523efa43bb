"""Which compiles of a tuning go along with the first, and where each is taken from when it is its turn."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import triton

from safecache import session
from safecache.errors import TritonCompileCrash
from safecache.isolation import attempts, client, compiling, crashes, tuning
from safecache.isolation.crash import Crash
from safecache.isolation.crashes import Note
from safecache.isolation.limits import Limits
from safecache.reporting import events

LIMITS = Limits(1.0, 10**9)


def request(key):
    return attempts.Request(SimpleNamespace(name="k"), None, None, key, "k.json")


@pytest.fixture
def given(monkeypatch):
    """What the service is given: the keys of each call."""
    given = []

    def together(request, others, limits):
        keys = [other.key for other in others]
        given.append([request.key, *keys])
        return f"attempt of {request.key}", {key: f"attempt of {key}" for key in keys}

    def alone(request, limits):
        given.append(request.key)
        return f"attempt of {request.key}"

    monkeypatch.setattr(attempts, "run", alone)
    monkeypatch.setattr(attempts, "run_together", together)
    return given


@pytest.fixture
def under_way(monkeypatch):
    """A tuning that is still to compile these."""
    current = tuning.Tuning([])
    monkeypatch.setattr(tuning, "current", lambda: current)

    def ask(*keys):
        current.asked = lambda: iter([tuple(request(key)[:4]) for key in keys])
        return current

    return ask


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Of a cache that holds "there"."""
    session.reset()
    there = request("there").hash
    cached = lambda hash: SimpleNamespace(get_group=lambda name: {} if hash == there and name == "k.json" else None)  # noqa: E731
    monkeypatch.setattr(triton.compiler.compiler, "get_cache_manager", cached)
    return str(tmp_path)


def crashed(root, key):
    crashes.remember(root, request(key).hash, Note(Crash("signal", 6, "ptx"), "k", {}, None, time.time()))


def test_compile_outside_of_a_tuning_is_alone(given, root):
    assert compiling._attempt(request("a"), root, LIMITS) == "attempt of a" and given == ["a"]


def test_what_is_neither_cached_nor_known_to_crash_goes_along_once(given, root, under_way):
    crashed(root, "bad")
    under_way("a", "b", "there", "bad", "c", "b")
    assert compiling._attempt(request("a"), root, LIMITS) == "attempt of a"
    assert given == [["a", "b", "c"]]


def test_what_was_compiled_ahead_is_taken_in_its_turn(given, root, under_way):
    current = under_way("b", "c")
    compiling._attempt(request("a"), root, LIMITS)
    assert [compiling._attempt(request(key), root, LIMITS) for key in "cb"] == ["attempt of c", "attempt of b"]
    assert len(given) == 1 and current.attempts == {}


def test_compile_that_is_known_to_crash_starts_nothing(monkeypatch, root):
    crashed(root, "bad")
    monkeypatch.setattr(client, "current", pytest.fail)
    with pytest.raises(TritonCompileCrash, match="is not compiled"):
        compiling.obtain(request("bad"), root, LIMITS, None)


@pytest.mark.parametrize(
    ("knob", "variable"),
    [
        ("always_compile", "TRITON_ALWAYS_COMPILE"),
        ("override", "TRITON_KERNEL_OVERRIDE"),
        ("dump_ir", "TRITON_KERNEL_DUMP"),
    ],
)
def test_compile_stays_where_it_is_asked_for_itself(monkeypatch, caplog, knob, variable):
    assert compiling.stays("k") is False and events.counters() == {}
    monkeypatch.setitem(vars(triton.knobs.compilation), knob, True)
    assert compiling.stays("k") is True and events.counters() == {"not isolated": 1}
    assert f"{variable} is set" in caplog.text
