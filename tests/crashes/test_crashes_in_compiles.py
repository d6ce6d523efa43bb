"""triton.compile with real crashes: the process lives, the error says what happened, and the rest is as in stock."""

from __future__ import annotations

import shutil

import pytest

from crashes import crash_scenes
from crashes.crash_names import DEADLY

STOCK = {"SAFECACHE": "0"}


@pytest.mark.parametrize("binary_only", ["0", "1"], ids=["all-stored", "binary-only"])
@pytest.mark.parametrize("name", DEADLY)
def test_abort_of_the_compiler_is_an_error_that_says_in_which_stage(home, name, binary_only):
    answer = home.compile(name, "sound", env={"TRITON_STORE_BINARY_ONLY": binary_only})
    crash, sound = answer.result
    assert crash["error"] == "TritonCompileCrash"
    assert (crash["how"], crash["signal"], crash["stage"]) == ("signal", 6, DEADLY[name])
    assert (
        crash["kernel"] == name.replace("-", "_") and crash["config"]["N"] == 128 and crash["config"]["num_warps"] == 4
    )
    assert "hash" in sound and answer.stats["compile crashed"] == 1


def test_signal_caught_in_a_pass_is_a_crash_too(home):
    [crash] = home.compile("recovered").result
    assert (crash["error"], crash["how"], crash["signal"], crash["stage"]) == (
        "TritonCompileCrash",
        "recovered",
        None,
        "ttgir",
    )


def test_death_of_the_parser_is_a_crash_too(home):
    [crash] = home.compile("empty-module").result
    assert (crash["error"], crash["how"], crash["signal"], crash["stage"]) == (
        "TritonCompileCrash",
        "signal",
        11,
        "source",
    )


@pytest.mark.parametrize("stage", ["ttir", "ttgir"])
def test_file_of_ir_is_compiled_apart_once_as_stock_does(home, stage):
    cold = home.run(crash_scenes.compile_ir, stage=stage)
    warm = home.run(crash_scenes.compile_ir, stage=stage)
    assert cold.stats["compiled in isolation"] == 2 and cold.children == 1
    assert warm.children == 0 and "compiled in isolation" not in warm.stats
    shutil.rmtree(home.cache)
    assert cold.result == warm.result == home.run(crash_scenes.compile_ir, stage=stage, env=STOCK).result


def test_hang_ends_with_the_timeout(home):
    [crash] = home.compile("hang", env={"SAFECACHE_COMPILE_TIMEOUT": "2"}).result
    assert (crash["error"], crash["how"]) == ("TritonCompileCrash", "timeout")
    assert "more than 2 s" in crash["text"] and "SAFECACHE_ISOLATE=1,timeout=" in crash["text"]


def test_want_of_memory_ends_with_the_limit(home):
    [crash] = home.compile("memory", env={"SAFECACHE_COMPILE_MEMORY": "1G"}).result
    assert (crash["error"], crash["how"]) == ("TritonCompileCrash", "memory")
    assert "more than 1.0 GB" in crash["text"] and "SAFECACHE_ISOLATE=1,memory=" in crash["text"]


@pytest.mark.parametrize(("name", "error"), [("wrong-instruction", "PTXASError"), ("wrong-types", "CompilationError")])
def test_ordinary_failure_is_the_error_of_stock(home, name, error):
    [ours] = home.compile(name).result
    [stock] = home.compile(name, env=STOCK).result
    assert ours["error"] == stock["error"] == error
    assert ours["text"].splitlines()[0] == stock["text"].splitlines()[0]
    assert home.reports == home.notes == []


def test_what_is_compiled_apart_is_what_stock_compiles_under_the_same_key(home):
    [ours] = home.compile("sound").result
    shutil.rmtree(home.cache)
    [stock] = home.compile("sound", env=STOCK).result
    assert ours == stock


def test_stock_reads_what_was_compiled_apart(home):
    home.compile("sound")
    stamps = {path: path.stat().st_mtime_ns for path in home.cache.rglob("*.cubin")}
    home.compile("sound", env=STOCK)
    assert stamps == {path: path.stat().st_mtime_ns for path in home.cache.rglob("*.cubin")} != {}


# What each process that compiles with Triton has of the service.
ASKED = ["safecache.isolation", "safecache.isolation.asked"]


def test_warm_start_starts_no_process_and_imports_nothing(home):
    cold = home.compile("sound")
    warm = home.compile("sound")
    assert cold.stats["compiled in isolation"] == 1 and cold.children == 1
    assert warm.result == cold.result and "compiled in isolation" not in warm.stats
    assert warm.children == 0 and warm.imported == [*ASKED, "safecache.isolation.early_start"]


def test_without_the_setting_nothing_is_isolated(home):
    answer = home.compile("sound", env={"SAFECACHE_ISOLATE": "0"})
    assert (
        "hash" in answer.result[0]
        and answer.children == 0
        and answer.imported == ASKED
        and "compiled in isolation" not in answer.stats
    )


def test_crash_is_said_once_for_each_kernel(home):
    answer = home.compile("unknown-operand", "narrow-register")
    assert [message.count("crashed on kernel") for message in answer.warnings] == [1, 1]


def test_crash_is_a_crash_in_strict_mode_too(home):
    [crash] = home.compile("unknown-operand", env={"SAFECACHE_STRICT": "1"}).result
    assert crash["error"] == "TritonCompileCrash"


@pytest.mark.parametrize("variable", ["TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_DUMP", "TRITON_KERNEL_OVERRIDE"])
def test_what_needs_this_process_stays_in_it_with_its_reason(home, variable):
    answer = home.compile("sound", "sound", env={variable: "1", "TRITON_HOME": str(home.base)})
    assert answer.children == 0
    [message] = answer.warnings
    assert variable in message and "not isolated" in message


def test_error_survives_pickling(home):
    told = home.run(crash_scenes.pickled, name="unknown-operand").result
    assert told["before"] == told["after"] and told["same"]


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


@pytest.mark.parametrize(
    ("scene", "reason"),
    [
        (crash_scenes.compile_with_a_hook_in_the_stages, "add_stages_inspection_hook"),
        (crash_scenes.compile_without_an_interpreter, "sys.executable"),
    ],
)
def test_what_cannot_be_isolated_is_compiled_here_with_one_reason(home, scene, reason):
    answer = home.run(scene, names=["sound", "sound"])
    assert all("hash" in result for result in answer.result) and "compiled in isolation" not in answer.stats
    [message] = answer.warnings
    assert reason in message and "not isolated" in message


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
