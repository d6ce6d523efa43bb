"""triton.compile with real crashes: the process lives, the error says what happened, and the rest is as in stock."""

from __future__ import annotations

import os
import shutil

import pytest

from crashes import crash_scenes
from crashes.conftest import FAULTY
from crashes.crash_names import DEADLY

STOCK = {"SAFECACHE": "0"}
# What each process that compiles with Triton has of the service.
ASKED = ["safecache.isolation", "safecache.isolation.dispatch"]
ENDINGS = {name: ("signal", 6, stage) for name, stage in DEADLY.items()}
ENDINGS |= {"recovered": ("recovered", None, "ttgir"), "empty-module": ("signal", 11, "source")}
of_crashed = pytest.mark.xdist_group("crashed")


@of_crashed
def test_crash_of_the_compiler_is_an_error_that_says_in_which_stage(crashed):
    answer = crashed.answer
    for crash, ending in zip(answer.result, ENDINGS.values(), strict=False):
        assert crash["error"] == "TritonCompileCrash" and crash["survives pickling"]
        assert (crash["how"], crash["signal"], crash["stage"]) == ending
    for crash, name in zip(answer.result, DEADLY, strict=False):
        assert crash["kernel"] == name.replace("-", "_")
        assert crash["config"]["N"] == 128 and crash["config"]["num_warps"] == 4
    assert "hash" in answer.result[-1] and answer.stats["compile crashed"] == len(ENDINGS)
    assert [message.count("crashed on kernel") for message in answer.warnings] == [1] * len(ENDINGS)


@of_crashed
def test_crash_is_the_same_in_strict_mode_and_where_binaries_alone_are_stored(crashed, home):
    """As Helion's autotuner has it."""
    *crashes, sound = home.compile(
        *DEADLY, "sound", env={"TRITON_STORE_BINARY_ONLY": "1", "SAFECACHE_STRICT": "1"}
    ).result
    assert "hash" in sound
    for crash in crashes:
        full = crashed.crashes[crash["kernel"]]
        assert all(crash[what] == full[what] for what in ("error", "how", "signal", "stage"))
        assert sorted(os.listdir(crash["report"])) == sorted(os.listdir(full["report"]))
    assert "kernel.llir" in os.listdir(crashes[-1]["report"])


@of_crashed
def test_what_is_compiled_apart_is_what_stock_compiles_under_the_same_key(crashed, home):
    """From source and from files of IR; and errors are those of stock."""
    what = {"scene": crash_scenes.compile_ir, "stages": ["ttir", "ttgir"]}
    cold = home.run(**what)
    assert cold.stats["compiled in isolation"] == 3 and cold.children == 1
    warm = home.run(**what)
    assert warm.children == 0 and "compiled in isolation" not in warm.stats
    [sound] = (of_source := home.compile("sound")).result
    assert sound == cold.result["sound"] and of_source.children == 0
    assert of_source.imported == ASKED
    stamps = {path: path.stat().st_mtime_ns for path in home.cache.rglob("*.cubin")}
    assert cold.result == warm.result == home.run(**what, env=STOCK).result
    assert stamps == {path: path.stat().st_mtime_ns for path in home.cache.rglob("*.cubin")} != {}
    shutil.rmtree(home.cache)
    stock = home.run(**what, names=[*FAULTY], env=STOCK).result
    assert cold.result == {name: stock[name] for name in cold.result}
    for (name, error), ours in zip(FAULTY.items(), crashed.answer.result[len(ENDINGS) :], strict=False):
        assert ours["error"] == stock[name]["error"] == error
        assert ours["text"].splitlines()[0] == stock[name]["text"].splitlines()[0]
    assert len(crashed.reports) == len(crashed.notes) == len(ENDINGS)


def test_want_of_memory_ends_with_the_limit(home):
    [crash] = home.compile("memory", env={"SAFECACHE_COMPILE_MEMORY": "1G"}).result
    assert (crash["error"], crash["how"]) == ("TritonCompileCrash", "memory")
    assert "more than 1.0 GB" in crash["text"] and "SAFECACHE_ISOLATE=1,memory=" in crash["text"]


def test_without_the_setting_nothing_is_isolated(home):
    answer = home.compile("sound", env={"SAFECACHE_ISOLATE": "0"})
    assert "hash" in answer.result[0] and "compiled in isolation" not in answer.stats
    assert answer.children == 0 and answer.imported == ASKED


def test_what_needs_this_process_stays_in_it_with_its_reason(home):
    answer = home.compile("sound", "sound", env={"TRITON_ALWAYS_COMPILE": "1"})
    assert answer.children == 0
    [message] = answer.warnings
    assert "TRITON_ALWAYS_COMPILE" in message and "not isolated" in message
    unset = home.compile("sound", "narrow-register")
    assert unset.children == 1 and not any("not isolated" in message for message in unset.warnings), unset


def test_what_cannot_be_isolated_is_compiled_here_with_one_reason(home):
    answer = home.run(crash_scenes.compile_what_cannot_be_isolated)
    assert all("hash" in result for result in answer.result) and "compiled in isolation" not in answer.stats
    assert len(answer.warnings) == 2
    for message, reason in zip(answer.warnings, ("sys.executable", "add_stages_inspection_hook"), strict=True):
        assert reason in message and "not isolated" in message


def test_threads_compile_apart_at_once(home):
    answer = home.run(crash_scenes.compile_in_threads, names=["sound", "unknown-operand"], warps=[1, 2, 4, 8])
    assert [result for name, _, result in answer.result if name == "sound"] == ["sound"] * 4
    assert [result for name, _, result in answer.result if name != "sound"] == [True] * 4
    assert answer.stats["compiled in isolation"] == answer.stats["compile crashed"] == len(home.notes) == 4


def test_forked_child_has_a_service_of_its_own(home):
    told = home.run(crash_scenes.compile_after_a_fork, name="unknown-operand").result
    assert "hash" in told["before"] and told["child"]["error"] == "TritonCompileCrash"
    assert told["parent"]["error"] == "CompilationError"


def test_compile_worker_of_inductor_compiles_by_itself(home):
    answer = home.run(crash_scenes.compile_in_a_compile_worker, names=["sound"])
    assert answer.children == 0 and answer.warnings == [] and answer.imported == ASKED


def test_compile_worker_of_inductor_has_compiles_apart_if_told_so(home):
    answer = home.run(crash_scenes.compile_in_a_compile_worker, names=["sound"], env={"SAFECACHE_ISOLATE": "workers"})
    assert answer.stats["compiled in isolation"] == 1


def test_ptxas_that_is_set_in_the_middle_is_used_and_the_keys_are_those_of_stock(home):
    """Of the ptxas that this process has asked for its version first."""
    scene = {"scene": crash_scenes.compile_with_another_ptxas_from_now_on, "names": ["sound"]}
    ours = home.run(**scene)
    shutil.rmtree(home.cache)
    stock = home.run(**scene, env=STOCK)
    assert ours.stats["compiled in isolation"] == 1 and not ours.warnings
    assert ours.result[0]["hash"] == stock.result[0]["hash"]


def test_what_is_compiled_apart_is_sent_to_a_remote_cache(home):
    answer = home.run(crash_scenes.compile_with_a_remote_cache, names=["sound"])
    [compiled] = answer.result["compiled"]
    sent = [*compiled["files"], "__grp__scale.json"]
    assert sorted(sent + [f"{name}.safecache-record" for name in sent]) == answer.result["remote"]
    assert answer.stats["compiled in isolation"] == 1
