"""Which compiles of a tuning go along with the first, and where each is taken from when it is its turn."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import triton

from safecache import compiles, session
from safecache.errors import TritonCompileCrash
from safecache.isolation import client, compiling, crashes, dispatch
from safecache.isolation.client import Limits, Request
from safecache.isolation.crashes import Crash, Note
from safecache.ports import KernelRequest
from safecache.reporting import events

LIMITS = Limits(1.0, 10**9)


def request(key, root=""):
    return Request(SimpleNamespace(name="k"), None, None, key, "k.json", root, LIMITS)


@pytest.fixture
def given(monkeypatch):
    """What the service is given: the keys of each call."""
    given = []

    def together(request, others):
        keys = [other.key for other in others]
        given.append([request.key, *keys])
        return f"attempt of {request.key}", {key: f"attempt of {key}" for key in keys}

    def alone(request):
        given.append(request.key)
        return f"attempt of {request.key}"

    monkeypatch.setattr(compiling, "run", alone)
    monkeypatch.setattr(compiling, "run_together", together)
    return given


@pytest.fixture
def under_way(monkeypatch):
    """A tuning that is still to compile these."""
    current = dispatch.Tuning([])
    monkeypatch.setattr(compiles.current, "kernel_tuning", current)

    def ask(*keys):
        current.iter_requests = lambda: iter([KernelRequest(*request(key)[:4], {}) for key in keys])
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
    assert compiling._attempt_compile(request("a", root)) == "attempt of a" and given == ["a"]


def test_what_is_neither_cached_nor_known_to_crash_goes_along_once(given, root, under_way):
    crashed(root, "bad")
    under_way("a", "b", "there", "bad", "c", "b")
    assert compiling._attempt_compile(request("a", root)) == "attempt of a"
    assert given == [["a", "b", "c"]]


def test_what_was_compiled_ahead_is_taken_in_its_turn(given, root, under_way):
    current = under_way("b", "c")
    compiling._attempt_compile(request("a", root))
    assert [compiling._attempt_compile(request(key, root)) for key in "cb"] == ["attempt of c", "attempt of b"]
    assert len(given) == 1 and current.attempts == {}


def test_compile_that_is_known_to_crash_starts_nothing(monkeypatch, root):
    crashed(root, "bad")
    monkeypatch.setattr(client, "get_service", pytest.fail)
    with pytest.raises(TritonCompileCrash, match="not compiling kernel"):
        compiling.obtain(request("bad", root), None)


@pytest.mark.parametrize(
    ("knob", "variable"),
    [
        ("always_compile", "TRITON_ALWAYS_COMPILE"),
        ("override", "TRITON_KERNEL_OVERRIDE"),
        ("dump_ir", "TRITON_KERNEL_DUMP"),
    ],
)
def test_compile_stays_where_it_is_asked_for_itself(monkeypatch, caplog, knob, variable):
    assert dispatch.should_compile_here("k") is False and events.read_counters() == {}
    monkeypatch.setitem(vars(triton.knobs.compilation), knob, True)
    assert dispatch.should_compile_here("k") is True and events.read_counters() == {"not isolated": 1}
    assert f"{variable} is set" in caplog.text
