"""A launcher from a pickle tells what it is before it is loaded, and is loaded once, by its first call."""

from __future__ import annotations

import pytest
from scenes import launcher_scenes

pytest.importorskip("triton")

KINDS = pytest.mark.parametrize("kind", ["static", "ordinary", "store_cubin"])


@KINDS
def test_attributes_are_there_before_anything_is_loaded(home, kind):
    answer = home.run(launcher_scenes.attributes_in_pickle, name=kind)
    assert answer.ok, answer
    assert answer.result["different"] == [] and answer.result["loaded"] == 0, answer
    expected = {"config", "n_regs", "n_spills", "shared", "cache_hash", "store_cubin"}
    assert expected | ({"_is_static"} if kind == "static" else set()) <= set(answer.result["names"])


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_first_calls_load_once_and_launch_with_their_arguments(home, kind, threads):
    answer = home.run(launcher_scenes.first_calls, name=kind, threads=threads)
    assert answer.ok, answer
    result = answer.result
    assert result["loaded"] == 1
    expected = [[(n + 127) // 128, 1, 1, 5 + n, f"in{n}", "out", n] for n in range(threads)]
    assert sorted(launched[:7] for launched in result["launched"]) == sorted(expected)
    assert [launched[:7] for launched in result["later"]] == [[8, 1, 1, 5, "in", "out", 1000]] * 2


@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_loaded_launcher_has_the_signature_and_keeps_what_was_set_on_it(home, kind):
    result = home.run(launcher_scenes.first_calls, name=kind, threads=1).result
    assert result["parameters"][:3] == ["in_ptr0", "out_ptr0", "xnumel"] and result["parameters"][-1] == "stream"
    assert result["note"] == ["kept"] and result["noted"] == ["kept"]


def test_child_that_is_forked_in_the_middle_of_a_load_can_load(home):
    answer = home.run(launcher_scenes.fork_while_loading)
    assert answer.ok and answer.result == 0, answer


def test_launcher_that_keeps_its_binary_has_it_after_a_pickle_too(home):
    answer = home.run(launcher_scenes.kept_binary)
    assert answer.ok, answer
    result = answer.result
    assert result["arguments"] == {"def_args": True, "call_args": True} and result["loaded by arguments"] == 0
    assert result["asm"] and all(result["asm"].values()) and {"cubin", "ptx", "ttir"} <= set(result["asm"])
    assert result["hash"] and result["again"]
    assert result["function"] == ["triton_poi_scale"] * 2
    assert result["loaded"] == 1, "by the one that reads bin, once"
