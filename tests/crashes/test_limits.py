"""How long a compile may take, and how much memory, by default and as it is set."""

from __future__ import annotations

import os
import types

import pytest

from safecache import compiles
from safecache.integrations import triton_runtime
from safecache.isolation import client, dispatch
from safecache.ports import Compiler, plugs

GB = 10**9


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """One with so much memory, and perhaps a container's limit."""

    def make(memory, cgroup):
        sizes = {"SC_PHYS_PAGES": memory // 4096, "SC_PAGE_SIZE": 4096}
        monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
        monkeypatch.setattr(client, "_CGROUP_LIMIT", str(tmp_path / "memory.max"))
        if cgroup is not None:
            (tmp_path / "memory.max").write_text(f"{cgroup}\n")
        client._halve_memory.cache_clear()

    yield make
    client._halve_memory.cache_clear()


@pytest.mark.parametrize(
    ("memory", "cgroup", "limit"),
    [
        (512 * GB, None, 16 * GB),
        (512 * GB, "max", 16 * GB),
        (4096 * 5 * 10**6, None, 2048 * 5 * 10**6),
        (4096 * 10**6, None, 2048 * 10**6),
        (512 * GB, 8 * GB, 4 * GB),
        (512 * GB, GB, GB),
        (4096 * 10**5, None, GB),
    ],
    ids=["large", "no-limit", "middle", "small", "container", "small-container", "tiny"],
)
def test_memory_is_half_of_what_there_is_within_bounds(machine, memory, cgroup, limit):
    machine(memory, cgroup)
    assert client.current_limits(tuning=False).memory == limit


def test_what_is_tuned_has_less_time():
    assert client.current_limits(tuning=False).timeout == 600
    assert client.current_limits(tuning=True).timeout == 120


def test_what_is_set_counts_everywhere(settings):
    settings(SAFECACHE_COMPILE_TIMEOUT=30, SAFECACHE_COMPILE_MEMORY="2G")
    assert client.current_limits(tuning=False) == client.current_limits(tuning=True) == (30, 2 * GB)


def call_from(module, function, **local):
    """Whether it counts as tuning when this function of this module compiles."""
    code = f"def {function}(self): return ask()"
    names = {"__name__": module, "ask": lambda: dispatch._is_tuning()}
    exec(code, names)
    return names[function](types.SimpleNamespace(**local))


@pytest.mark.parametrize(
    ("module", "function", "local", "is_tuning"),
    [
        ("triton.runtime.autotuner", "_bench", {}, True),
        ("triton.runtime.autotuner", "run", {}, False),
        ("torch._inductor.runtime.triton_heuristics", "_precompile_worker", {"configs": [1, 2]}, True),
        ("torch._inductor.runtime.triton_heuristics", "_precompile_worker", {"configs": [1]}, False),
        ("torch._inductor.select_algorithm", "anything", {}, True),
        ("torch._inductor.async_compile", "anything", {}, False),
    ],
)
def test_compile_is_one_of_several_where_somebody_tunes(module, function, local, is_tuning):
    assert call_from(module, function, **local) is is_tuning


def test_a_compile_that_was_told_of_leaves_the_next_to_tell(monkeypatch):
    class Telling(Compiler):
        def compile(self, source, options, work):
            compiles.current.is_told = True
            return work()

    monkeypatch.setattr(plugs, "compiler", Telling())
    found = [triton_runtime.compile(lambda _: compiles.current.is_told, None, ("source",), {}) for _ in range(2)]
    assert found == [True, True] and not compiles.current.is_told
