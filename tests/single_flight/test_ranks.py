"""Ranks that train, each with a cache of its own, of which one is cold, damaged, full and so on: equal losses, no hang.

Where ranks meet in their compiles, one that leaves another there would hang both: the group's limit ends it then.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from safecache.integrations import compile_scopes
from single_flight import jobs
from single_flight.crowd import Crowd

pytestmark = pytest.mark.default_release

GROUP = """
import datetime, os
import torch.distributed as dist
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel
RANK, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=60)
meeting = "file://" + os.environ["MEET"]
dist.init_process_group("gloo", init_method=meeting, rank=RANK, world_size=2, timeout=limit)
mesh = dist.init_device_mesh("cpu", (2,))
parallel = {"ddp": DistributedDataParallel, "fsdp": lambda model: fsdp.fully_shard(model, mesh=mesh)}["PARALLEL"]
"""
# As with compile-time collectives of torch's; for FSDP there are none in what it compiles.
MEETS = """
torch._functorch.config._sync_decision_cross_ranks = True
from torch._inductor import graph
plain = graph.GraphLowering.compile_to_module
def compile_to_module(self):
    dist.barrier()
    return plain(self)
graph.GraphLowering.compile_to_module = compile_to_module
"""
# The state of the second rank's cache, or what it does; in "sampled", both compile all that they hit once more. With the
# last one it goes on in a directory of its own.
CASES = ("all cold", "damaged", "cold", "late", "sampled", "LAST")
TRAIN = f"""
import contextlib, shutil, time
from pathlib import Path
import safecache
from safecache import testing
from safecache.settings import config
cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])

@contextlib.contextmanager
def state_of(case):
    with contextlib.ExitStack() as stack:
        if case in ("cold", "full", "read-only"):
            for name in ("aotautograd", "fxgraph"):
                shutil.rmtree(cache / name, ignore_errors=True)
        if case == "damaged":
            for entry in testing.entries(cache):
                testing.damage(entry, "flipped")
        for call in {{"full": ["write"], "read-only": ["mkdir", "rename"]}}.get(case, []):
            stack.enter_context(testing.failing(call, "ENOSPC" if case == "full" else "EROFS", cache))
        if case == "late":
            time.sleep(1)
        yield

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))

def train():
    torch.manual_seed(0)
    model = parallel(Model())
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    compiled = torch.compile(model)
    for step in range(2):
        optimizer.zero_grad()
        loss = compiled(x + RANK).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).sum()

results = {{}}
for case in {CASES!r}:
    torch.compiler.reset()
    counters.clear()
    os.environ["SAFECACHE_RECOMPILE_SAMPLE"] = "1" if case == "sampled" else "0"
    config.reload()
    with state_of(case) if RANK else contextlib.nullcontext():
        results[case + " loss"] = train().item()
    results[case + " misses"] = counters["inductor"]["fxgraph_cache_miss"]
results["recompile matches"] = safecache.stats()["recompile matches"]
counters["inductor"].update(results)
y = torch.zeros(())
"""


@pytest.mark.parametrize(
    ("prepare", "parallel", "last"),
    [("", "ddp", "full"), ("", "fsdp", "read-only"), (MEETS, "ddp", "read-only"), (MEETS, "fsdp", "full")],
    ids=["ddp", "fsdp", "ddp that meets", "fsdp that meets"],
)
def test_ranks_come_to_equal_losses_whatever_the_cache_of_one(home, new_home, prepare, parallel, last):
    first, second = trained([home, new_home()], GROUP.replace("PARALLEL", parallel) + prepare, last)
    cases = [case.replace("LAST", last) for case in CASES]
    for rank in (first, second):
        assert len({rank[f"{case} loss"] for case in cases}) == 1, rank
    assert first["all cold misses"] == second["all cold misses"] == 2  # of the forward and of the backward
    for case in cases[1:]:
        own, others = second[f"{case} misses"], first[f"{case} misses"]
        assert own == (0 if case == "late" else 2), (case, second)
        assert others == (own if prepare or case == "sampled" else 0), (case, first, second)
    assert first["recompile matches"] == second["recompile matches"] > 0, (first, second)


def trained(hosts, prepare, last):
    """What both ranks have counted."""
    run = TRAIN.replace("LAST", last)
    answers = Crowd(hosts[0], 0, run, prepare, homes=hosts, MEET=str(hosts[0].base / "meet")).answers()
    return [answer["found"] for answer in answers]


DIES = """
import signal, time
from torch._inductor import graph
to_module = graph.GraphLowering.compile_to_module
def compile_to_module(self):
    if RANK and ("backward" if self.is_backward else "forward") == "AMID":
        os.kill(os.getpid(), signal.SIGKILL)
    return to_module(self)
graph.GraphLowering.compile_to_module = compile_to_module
# The other one comes to it later, or would compile for both.
from torch._inductor import compile_fx as inductor
compile_fx = inductor.compile_fx
def compile_later(*args, **named):
    time.sleep(0 if RANK else 3)
    return compile_fx(*args, **named)
inductor.compile_fx = compile_later
"""
ENDS = """
try:
    {run}
except RuntimeError as error:
    warnings.append(f"torch: {{error}}")
y = torch.zeros(())
"""


@pytest.mark.parametrize(("prepare", "amid"), [("", "forward"), (MEETS, "backward")], ids=["apart", "meeting"])
def test_rank_that_is_killed_in_its_compile_leaves_nobody_waiting(home, prepare, amid):
    """They share a cache, so that the other waits for its lease, or for it in a collective: which is torch's error."""
    group = GROUP.replace("PARALLEL", "ddp") + prepare + DIES.replace("AMID", amid)
    run = ENDS.format(run=TRAIN.replace("LAST", "warm").replace("\n", "\n    "))
    crowd = Crowd(home, 2, run, group, MEET=str(home.base / "meet"))
    (answer,) = crowd.answers(died=[-9])
    assert crowd.statuses == [0, -9]
    assert [line for line in answer["warnings"] if line.startswith("torch: ")], answer
    assert "wait timed out" not in answer["stats"], answer


COUNTS = """
from safecache.integrations import compile_scopes
from safecache.reporting import waits
limit = compile_scopes._find_group()[0]
waits.charge(limit, in_vain=False)
spent = waits.get_remaining_seconds(300)
dist.all_reduce(torch.ones(1))
counters["inductor"].update({"limit": limit, "spent": spent, "left": waits.get_remaining_seconds(300)})
y = torch.zeros(())
"""


def test_waits_of_a_rank_begin_anew_with_each_collective(home):
    crowd = Crowd(home, 2, COUNTS, GROUP.replace("PARALLEL", "ddp"), MEET=str(home.base / "meet"))
    for answer in crowd.answers():
        found = answer["found"]
        assert (found["limit"], found["spent"], found["left"]) == (30, 0, 30), answer


TRAINS = """
from single_flight import ranks
counters["inductor"]["rank"] = ranks.train({mode!r}, "cpu", {dies!r})
y = torch.zeros(())
"""


@pytest.fixture(scope="module", params=jobs.MODES)
def job(request, new_home):
    home = new_home()

    def run(environments, dies):
        hosts = [SimpleNamespace(environment=home.environment | each) for each in environments]
        crowd = Crowd(home, 0, TRAINS.format(mode=request.param, dies=dies), homes=hosts)
        assert sorted(crowd.statuses) == ([-9, 0] if dies else [0, 0]), crowd.said
        return [answer["found"]["rank"] for answer in crowd.answers(died=[-9])]

    return jobs.Job(home.base, run)


@jobs.in_each_state
def test_losses_are_those_of_eager_in_each_state(job, check):
    check(job)


def test_stages_of_a_pipeline_share_the_time_that_one_rank_may_wait(monkeypatch):
    """A late stage stands in recv while each earlier one waits, and its group counts all of that."""
    ranks = SimpleNamespace(get_world_size=lambda: 4)
    monkeypatch.setattr(compile_scopes, "_find_timeout_seconds", lambda distributed: 600.0)
    monkeypatch.delitem(sys.modules, "torch.distributed.pipelining.stage", raising=False)
    assert compile_scopes._share_timeout(ranks) == 300
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.stage", SimpleNamespace())
    assert compile_scopes._share_timeout(ranks) == 75
