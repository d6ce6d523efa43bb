"""Cold processes that compile the same at once: one of them compiles it."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
from conftest import SOURCE
from helpers import memory
from helpers.together import INFERENCE, TRAINING, Together, said, total
from scenes import crowd_scenes

from safecache.history import run_summary, shared_compiles


@pytest.mark.parametrize("strict", [0, 1])
def test_inference_is_compiled_once(home, strict):
    with Together(home, 4, INFERENCE, SAFECACHE_STRICT=str(strict)) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "autograd_cache_miss") == total(answers, "fxgraph_cache_miss") == 1, answers
    assert total(answers, "autograd_cache_hit") == 3 and not said(answers), answers
    assert len({answer["y"] for answer in answers}) == 1
    assert os.listdir(home.cache / ".safecache" / "leases") == []
    pids = [process.pid for process in processes.processes]
    waited = shared_compiles.find(run_summary.read(str(home.cache))).values()
    assert sum(each.processes for each in waited) <= 3 and all(each.pid in pids for each in waited), waited
    assert sum(answer["stats"].get("left to another process", 0) for answer in answers) == sum(
        each.processes for each in waited
    )


def test_graphs_of_training_are_compiled_once(home):
    with Together(home, 3, TRAINING) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "fxgraph_cache_miss") == 2 and not said(answers), answers
    assert len({answer["y"] for answer in answers}) == 1


def test_switched_off_each_compiles(home):
    """So that the tests above show something."""
    with Together(home, 2, INFERENCE, SAFECACHE_SINGLE_FLIGHT="0") as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "fxgraph_cache_miss") == 2, answers


ASKED = """
from safecache.flights import scopes
plain = scopes._enter
def enter(this, ref, before):
    warnings.append(f"{ref.kind.word} {before() > 0}")
    return plain(this, ref, before)
scopes._enter = enter
"""


def test_what_a_compile_took_is_known_when_its_entry_is_gone(home):
    heard = []
    for _ in range(2):
        with Together(home, 1, INFERENCE, ASKED) as processes:
            processes.begin()
            heard += said(processes.answers())
        for name in ("aotautograd", "fxgraph"):
            shutil.rmtree(home.cache / name)
    assert heard == ["aot False", "fx False", "aot True", "fx True"]


MANY = 32
# The first that generates code stops amid that, with its leases, and says who it is.
STOPS = """
import os, signal
from torch._inductor import graph
plain = graph.GraphLowering.compile_to_module
def compile_to_module(self):
    try:
        os.mkdir(os.environ["FIRST"])
    except FileExistsError:
        return plain(self)
    {how}
graph.GraphLowering.compile_to_module = compile_to_module
"""


def in_body(code: str) -> str:
    """As the end of what STOPS defines."""
    return code.strip().replace("\n", "\n    ")


def assert_one_succeeds(home, number, how, **environment):
    """Of so many processes, the one that comes to ``how`` dies of it, and one of the others compiles."""
    first = str(home.base / "first")
    with Together(home, number, INFERENCE, STOPS.format(how=in_body(how)), FIRST=first, **environment) as processes:
        processes.begin()
        for process in processes.processes:
            process.wait(280)
        dead = [process for process in processes.processes if process.returncode]
        answers = processes.answers(killed=dead)
    assert len(dead) == 1 and dead[0].returncode in (-signal.SIGKILL, 3)
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers
    assert len({answer["y"] for answer in answers}) == 1


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"], ids=["killed", "exits"])
def test_holder_that_dies_in_its_compile_has_one_successor(home, how):
    assert_one_succeeds(home, 4, how)


def test_holder_that_runs_out_of_memory_has_one_successor(home):
    with memory.little_memory() as environment:
        assert_one_succeeds(home, 3, memory.FILL, **environment)


@pytest.mark.parametrize("dies", [False, True], ids=["", "of which the first is killed"])
def test_of_many_processes_one_compiles(home, dies):
    answer = home.run(crowd_scenes.compile_in_many, processes=MANY, first=str(home.base / "first") if dies else None)
    assert answer.ok and not answer.warnings, answer
    found = [json.loads(each) for each, _ in answer.result if each]
    assert sorted(status for _, status in answer.result) == [0] * (MANY - dies) + [signal.SIGKILL] * dies, answer
    assert len(found) == MANY - dies and len({each["y"] for each in found}) == 1, answer
    assert sum(each["miss"] for each in found) == 1 and sum(each["hit"] for each in found) == len(found) - 1, answer


def test_compile_that_fails_does_not_keep_the_others(home):
    prepare = STOPS.format(how="raise RuntimeError('no more memory')") + "torch._dynamo.config.suppress_errors = True"
    with Together(home, 3, INFERENCE, prepare, FIRST=str(home.base / "first")) as processes:
        processes.begin()
        answers = processes.answers()
    assert len({round(answer["y"], 4) for answer in answers}) == 1, answers
    assert not said(answers), answers


GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2)
"""
# Ranks meet in the compile, as with compile-time collectives of torch's.
MEETS = """
from torch._inductor import graph
plain = graph.GraphLowering.compile_to_module
def compile_to_module(self):
    dist.barrier()
    return plain(self)
graph.GraphLowering.compile_to_module = compile_to_module
"""


def test_ranks_of_a_group_share_a_compile(home):
    with Together(home, 2, INFERENCE, "import os" + GROUP, MEET=str(home.base / "meet")) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers


def test_ranks_that_meet_in_a_compile_do_not_wait_for_each_other(home):
    configured = "torch._functorch.config._sync_decision_cross_ranks = True"
    prepare = "import os" + GROUP + MEETS + configured
    with Together(home, 2, INFERENCE, prepare, MEET=str(home.base / "meet")) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "fxgraph_cache_miss") == 2, answers
    assert all("waited in vain" not in answer["stats"] for answer in answers), answers


# Who generates code first measures something on its device, which has first to end what waits for the other rank.
MEASURES = """
import os
from torch._inductor import graph
from torch._inductor.runtime.benchmarking import TritonBenchmarker
benchmarker = TritonBenchmarker()
benchmarker.triton_do_bench = lambda fn, return_mode: fn()
store = dist.distributed_c10d._get_default_store()
plain = graph.GraphLowering.compile_to_module
def compile_to_module(self):
    try:
        os.mkdir(os.environ["FIRST"])
    except FileExistsError:
        return plain(self)
    benchmarker.benchmark_gpu(lambda: store.wait(["sent"]))
    return plain(self)
graph.GraphLowering.compile_to_module = compile_to_module
"""


def test_rank_that_measures_lets_go_of_what_the_other_waits_for(home):
    """As stages of a pipeline with equal graphs: without that, both stand until the wait is given up."""
    group = GROUP.replace("world_size=2", "world_size=2, timeout=__import__('datetime').timedelta(seconds=60)")
    run = f"{INFERENCE}\nstore.set('sent', b'')"
    meet, first = str(home.base / "meet"), str(home.base / "first")
    with Together(home, 2, run, "import os" + group + MEASURES, MEET=meet, FIRST=first) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "fxgraph_cache_miss") == 2 and not said(answers), answers
    assert all("waited in vain" not in answer["stats"] for answer in answers), answers
    assert len({answer["y"] for answer in answers}) == 1


def test_rank_that_hits_compiles_with_one_that_does_not(home, new_home):
    """Each has a cache of its own, of which one is warm: without agreement it would leave the other in a collective."""
    configured = "torch._functorch.config._sync_decision_cross_ranks = True"
    hosts = [home, new_home()]
    for each in hosts[:1]:
        with Together(each, 1, INFERENCE, configured) as processes:
            processes.begin()
            processes.answers()
    prepare = "import os" + GROUP + MEETS + configured
    with Together(home, 0, INFERENCE, prepare, homes=hosts, MEET=str(home.base / "meet")) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "fxgraph_cache_miss") == 2 and not said(answers), answers
    assert answers[0]["stats"]["aot miss: other rank missed"] == 1, answers
    assert len({answer["y"] for answer in answers}) == 1
    with Together(home, 0, INFERENCE, prepare, homes=hosts, MEET=str(home.base / "meet again")) as processes:
        processes.begin()
        answers = processes.answers()
    assert total(answers, "autograd_cache_hit") == 2 and not said(answers), answers


def test_ranks_that_meet_compile_what_is_sampled_together(home, new_home):
    """Each has a cache of its own, and hides the same hits."""
    configured = "torch._functorch.config._sync_decision_cross_ranks = True"
    hosts = [home, new_home()]
    for each in hosts:
        with Together(each, 1, INFERENCE, configured) as processes:
            processes.begin()
            processes.answers()
    prepare = "import os" + GROUP + MEETS + configured
    settings = {"MEET": str(home.base / "meet"), "SAFECACHE_RECOMPILE_SAMPLE": "1"}
    with Together(home, 0, INFERENCE, prepare, homes=hosts, **settings) as processes:
        processes.begin()
        answers = processes.answers()
    for answer in answers:
        assert (answer["stats"]["aot miss: sampled"], answer["stats"]["compiled alike again"]) == (1, 2), answers
    assert not said(answers) and len({answer["y"] for answer in answers}) == 1


def test_rank_that_does_not_come_is_not_waited_for(home):
    """With a setting by which torch itself has a rank with no collectives in its graph wait for nobody."""
    configured = (
        "import torch._inductor.config_comms as comms\ncomms.runtime_estimations_align_across_all_distributed_ranks"
    )
    prepare = f"import os{GROUP}{configured} = True\nfrom safecache.integrations import compile_scopes\ncompile_scopes._MOST = 2.0"
    run = "if os.environ['RANK'] == '1':\n    y = x\nelse:\n    " + INFERENCE.replace("\n", "\n    ")
    with Together(home, 2, run, prepare, MEET=str(home.base / "meet")) as processes:
        processes.begin()
        answers = processes.answers()
    assert [line for line in said(answers) if "not all ranks" in line] and len(said(answers)) == 1, answers


KERNELS = f"""
sys.path.insert(0, {str(SOURCE / "tests")!r})
from scenes import kernel_scenes
kernel_scenes.compile_kernel()
y = torch.zeros(())
"""


def test_kernel_is_compiled_once(home):
    pytest.importorskip("triton")
    with Together(home, 4, KERNELS) as processes:
        processes.begin()
        answers = processes.answers()
    misses = [what for answer in answers for what in answer["stats"] if what.startswith("triton miss")]
    assert len(misses) == 1 and not said(answers), answers
