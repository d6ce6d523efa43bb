"""Cold processes that compile the same at once: one of them compiles it."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from helpers import memory
from helpers.together import INFERENCE, TRAINING, said, total

from safecache.history import run_summary
from single_flight.crowd import Crowd


@pytest.mark.parametrize("strict", [0, 1])
def test_inference_is_compiled_once(home, strict):
    crowd = Crowd(home, 4, INFERENCE, SAFECACHE_STRICT=str(strict))
    answers = crowd.answers()
    assert total(answers, "autograd_cache_miss") == total(answers, "fxgraph_cache_miss") == 1, answers
    assert total(answers, "autograd_cache_hit") == 3 and not said(answers), answers
    assert len({answer["y"] for answer in answers}) == 1
    assert os.listdir(home.cache / ".safecache" / "leases") == []
    waited = run_summary.find_shared(run_summary.read_unverified(str(home.cache))).values()
    assert sum(each.processes for each in waited) <= 3 and all(each.pid in crowd.pids for each in waited), waited
    assert sum(answer["stats"].get("compiled by another process", 0) for answer in answers) == sum(
        each.processes for each in waited
    )


def test_graphs_of_training_are_compiled_once(home):
    answers = Crowd(home, 3, TRAINING).answers()
    assert total(answers, "autograd_cache_miss") == 1, answers
    assert total(answers, "fxgraph_cache_miss") == 2 and not said(answers), answers
    assert len({answer["y"] for answer in answers}) == 1


# A backward that is compiled before its call fails.
FAILS_EARLY = """
from torch._functorch._aot_autograd import graph_compile
plain = graph_compile.track_graph_compiling
def track_graph_compiling(config, name):
    if config.force_non_lazy_backward_lowering:
        warnings.append("early")
        raise RuntimeError("no backward")
    return plain(config, name)
graph_compile.track_graph_compiling = track_graph_compiling
"""


def test_a_backward_that_fails_before_its_call_is_compiled_at_its_call(home):
    answers = Crowd(home, 2, TRAINING, FAILS_EARLY).answers()
    assert said(answers) == ["early"] and total(answers, "fxgraph_cache_miss") == 2, answers
    assert len({answer["y"] for answer in answers}) == 1


def test_who_compiles_alone_compiles_no_backward_before_its_call(home):
    answers = Crowd(home, 1, "y = torch.compile(model)(x).sum()").answers()
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers


def test_switched_off_each_compiles(home):
    """So that the tests above show something."""
    answers = Crowd(home, 2, INFERENCE, SAFECACHE_SINGLE_FLIGHT="0").answers()
    assert total(answers, "fxgraph_cache_miss") == 2, answers


ASKED = """
from safecache import single_flight
plain = single_flight._wait_or_take
def enter(this, ref, before):
    warnings.append(f"{ref.kind.word} {before() > 0}")
    return plain(this, ref, before)
single_flight._wait_or_take = enter
"""


def test_what_a_compile_took_is_known_when_its_entry_is_gone(home):
    heard = []
    for _ in range(2):
        heard += said(Crowd(home, 1, INFERENCE, ASKED).answers())
        for name in ("aotautograd", "fxgraph"):
            shutil.rmtree(home.cache / name)
    assert heard == ["aot False", "fx False", "aot True", "fx True"]


# The first that generates code stops amid that, with its leases, and says who it is.
STOPS = """
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
    crowd = Crowd(home, number, INFERENCE, STOPS.format(how=in_body(how)), FIRST=first, **environment)
    answers = crowd.answers(died=(-signal.SIGKILL, 3))
    assert len(answers) == number - 1
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers
    assert total(answers, "fxgraph_cache_hit") + total(answers, "autograd_cache_hit") >= number - 2
    assert len({answer["y"] for answer in answers}) == 1


@pytest.mark.parametrize(
    ("number", "how"),
    [(32, "os.kill(os.getpid(), signal.SIGKILL)"), (3, "os._exit(3)")],
    ids=["killed, of many", "exits"],
)
def test_holder_that_dies_in_its_compile_has_one_successor(home, number, how):
    assert_one_succeeds(home, number, how)


def test_holder_that_dies_in_a_backward_that_others_wait_for_has_one_successor(home):
    how = """
if not self.is_backward:
    os.rmdir(os.environ["FIRST"])
    return plain(self)
os.kill(os.getpid(), signal.SIGKILL)
"""
    crowd = Crowd(home, 3, TRAINING, STOPS.format(how=in_body(how)), FIRST=str(home.base / "first"))
    answers = crowd.answers(died=(-signal.SIGKILL,))
    assert len(answers) == 2 and len({answer["y"] for answer in answers}) == 1 and not said(answers), answers
    assert total(answers, "autograd_cache_miss") == total(answers, "fxgraph_cache_miss") == 1, answers


def test_holder_that_runs_out_of_memory_has_one_successor(home):
    with memory.little_memory() as environment:
        assert_one_succeeds(home, 3, memory.FILL, **environment)


def test_compile_that_fails_does_not_keep_the_others(home):
    prepare = STOPS.format(how="raise RuntimeError('no more memory')") + "torch._dynamo.config.suppress_errors = True"
    answers = Crowd(home, 3, INFERENCE, prepare, FIRST=str(home.base / "first")).answers()
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
    answers = Crowd(home, 2, INFERENCE, GROUP, MEET=str(home.base / "meet")).answers()
    assert total(answers, "fxgraph_cache_miss") == 1 and not said(answers), answers


def test_ranks_that_train_do_not_wait_for_each_others_backward(home):
    run = "y = torch.compile(model)(x).sum(); dist.barrier(); y.backward()"
    answers = Crowd(home, 2, run, GROUP, MEET=str(home.base / "meet")).answers()
    assert total(answers, "autograd_cache_miss") == total(answers, "fxgraph_cache_miss") == 2, answers
    assert all("wait timed out" not in answer["stats"] for answer in answers), answers


def test_ranks_that_meet_in_a_compile_do_not_wait_for_each_other(home):
    configured = "torch._functorch.config._sync_decision_cross_ranks = True"
    prepare = GROUP + MEETS + configured
    answers = Crowd(home, 2, INFERENCE, prepare, MEET=str(home.base / "meet")).answers()
    assert total(answers, "fxgraph_cache_miss") == 2, answers
    assert all("wait timed out" not in answer["stats"] for answer in answers), answers


# Who generates code first measures something on its device, which has first to end what waits for the other rank.
MEASURES = """
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
    answers = Crowd(home, 2, run, "import os" + group + MEASURES, MEET=meet, FIRST=first).answers()
    assert total(answers, "fxgraph_cache_miss") == 2 and not said(answers), answers
    assert all("wait timed out" not in answer["stats"] for answer in answers), answers
    assert len({answer["y"] for answer in answers}) == 1


def test_rank_that_hits_compiles_with_one_that_does_not(home, new_home):
    """Each has a cache of its own, of which one is warm: without agreement it would leave the other in a collective."""
    configured = "torch._functorch.config._sync_decision_cross_ranks = True"
    hosts = [home, new_home()]
    Crowd(home, 1, INFERENCE, configured).answers()
    prepare = GROUP + MEETS + configured
    answers = Crowd(home, 0, INFERENCE, prepare, homes=hosts, MEET=str(home.base / "meet")).answers()
    assert total(answers, "fxgraph_cache_miss") == 2 and not said(answers), answers
    assert answers[0]["stats"]["aot miss: other rank missed"] == 1, answers
    assert len({answer["y"] for answer in answers}) == 1
    answers = Crowd(home, 0, INFERENCE, prepare, homes=hosts, MEET=str(home.base / "meet again")).answers()
    assert total(answers, "autograd_cache_hit") == 2 and not said(answers), answers
    answers = Crowd(home, 0, INFERENCE, prepare, homes=[home] * 2, MEET=str(home.base / "meet once more")).answers()
    assert total(answers, "autograd_cache_hit") == 2 and not said(answers), answers


def test_ranks_that_meet_compile_what_is_sampled_together(home, new_home):
    """Each has a cache of its own, and hides the same hits."""
    configured = "torch._functorch.config._sync_decision_cross_ranks = True"
    hosts = [home, new_home()]
    for each in hosts:
        Crowd(each, 1, INFERENCE, configured).answers()
    prepare = GROUP + MEETS + configured
    settings = {"MEET": str(home.base / "meet"), "SAFECACHE_RECOMPILE_SAMPLE": "1"}
    answers = Crowd(home, 0, INFERENCE, prepare, homes=hosts, **settings).answers()
    for answer in answers:
        assert (answer["stats"]["aot miss: sampled"], answer["stats"]["recompile matches"]) == (1, 2), answers
    assert not said(answers) and len({answer["y"] for answer in answers}) == 1


def test_rank_that_does_not_come_is_not_waited_for(home):
    """With a setting by which torch itself has a rank with no collectives in its graph wait for nobody."""
    configured = (
        "import torch._inductor.config_comms as comms\n"
        "comms.runtime_estimations_align_across_all_distributed_ranks = True\n"
    )
    prepare = f"{GROUP}{configured}from safecache.integrations import compile_scopes\ncompile_scopes._MOST = 2.0"
    Crowd(home, 1, INFERENCE, configured).answers()
    run = "if os.environ['RANK'] == '1':\n    y = x\nelse:\n    " + INFERENCE.replace("\n", "\n    ")
    answers = Crowd(home, 2, run, prepare, MEET=str(home.base / "meet")).answers()
    assert [line for line in said(answers) if "not all ranks" in line] and len(said(answers)) == 1, answers


KERNELS = """
from scenes import kernel_scenes
kernel_scenes.compile_kernel()
y = torch.zeros(())
"""


def test_kernel_is_compiled_once(home):
    pytest.importorskip("triton")
    answers = Crowd(home, 4, KERNELS).answers()
    misses = [what for answer in answers for what in answer["stats"] if what.startswith("triton miss")]
    assert len(misses) == 1 and not said(answers), answers


MODEL = """
import os, sys, types
from safecache.integrations import vllm
if {group}:
    sys.modules["vllm.distributed.parallel_state"] = types.SimpleNamespace(_TP=types.SimpleNamespace(ranks=[0, 1]))
def load(model, path):
    if os.environ["RANK"] == "1":
        {rank_1}
    return "loaded"
try:
    found = vllm.load_model(load, None, (types.SimpleNamespace(forward=load), "/none"), {{}})
except KeyError:
    found = "raised"
y = torch.tensor([None, "loaded", "raised"].index(found))
"""


@pytest.mark.parametrize(
    ("rank_1", "group", "found"),
    [
        ("pass", True, [1, 1]),
        ("return None", True, [0, 0]),
        ("raise KeyError", True, [0, 2]),
        ("return None", False, [1, 0]),
    ],
)
def test_tensor_parallel_ranks_load_a_model_if_all_can(home, rank_1, group, found):
    """AllReduceFusionPass makes its workspace with the group: a rank that compiles would wait for one that has loaded."""
    run = MODEL.format(group=group, rank_1=rank_1)
    answers = Crowd(home, 2, run, GROUP, MEET=str(home.base / "meet")).answers()
    assert [answer["y"] for answer in answers] == found, answers
    lines = [line for line in said(answers) if "[other rank missed]" in line]
    assert len(lines) == len(said(answers)) == (group and found[0] == 0), answers
