"""What a rank of a job does in each mode: it trains, over gloo or NCCL. See jobs.py.

As a program with the arguments of train() it prints what that returns.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
from contextlib import suppress

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch._inductor import graph
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import safecache
from safecache.reporting import waits


class Model(torch.nn.Module):
    """Not only its layers: Dynamo skips a module of torch's in DDP and FSDP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))

    def forward(self, x):
        return self.layers(x)


PARALLEL = {
    "ddp": lambda model, mesh: DistributedDataParallel(model),
    "fsdp": lambda model, mesh: fully_shard(model, mesh=mesh),
    "tp": lambda model, mesh: parallelize_module(
        model, mesh, {"layers.0": ColwiseParallel(), "layers.2": RowwiseParallel()}
    ),
    "pp": lambda model, mesh: model.layers[2:] if mesh.get_rank() else model.layers[:2],
}


def train(mode, device, dies=""):
    """Train, without a compile and with it, in a group with a limit of LIMIT seconds: what either came to, and how.

    ``dies``: a directory to be made by the first rank that generates code, which kills itself then.
    """
    rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=int(os.environ["LIMIT"]))
    place = torch.device("cuda", rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(place)
    meeting = "file://" + os.environ["MEET"]
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=2, timeout=limit)
    mesh = dist.init_device_mesh(device, (2,))
    if dies:
        kill_first(dies)
    losses = {}
    # The group's error, where the other rank has died.
    with suppress(*[RuntimeError] if dies else []):
        losses = {"eager": run_steps(mode, mesh, place), "compiled": run_steps(mode, mesh, place, torch.compile)}
        dist.barrier()
        dist.destroy_process_group()
    missed = counters["inductor"]["fxgraph_cache_miss"] + counters["aot_autograd"]["autograd_cache_miss"]
    return losses | {"missed": missed, "in vain": waits._state.now.in_vain, "stats": safecache.stats()}


def run_steps(mode, mesh, place, compile=lambda model: model):
    """Return the loss of each step; of none in a stage that is not the last."""
    rank, losses = mesh.get_rank(), []
    torch.manual_seed(0)
    model = PARALLEL[mode](Model().to(place), mesh)
    compiled, optimizer = compile(model), torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(rank if mode in ("ddp", "fsdp") else 0)
    x = torch.randn(8, 64).to(place)
    if mode == "pp":
        # So the stages need not ask each other for shapes, which takes numpy.
        shapes = [torch.zeros(4, size, device=place, requires_grad=size == 256) for size in (64, 256, 64)]
        stage = pipelining.PipelineStage(compiled, rank, 2, place, *shapes[rank : rank + 2])
        schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=lambda y, _: y.square().mean())
    for _ in range(3):
        if mode == "pp":
            schedule.step(*[x][rank:], target=x, losses=(found := []))
        else:
            found = [compiled(x).square().mean()]
            found[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [sum(each.item() for each in found) / len(found)] if found else []
    return losses


def kill_first(dies):
    plain = graph.GraphLowering.compile_to_module

    def compile_to_module(self):
        try:
            os.mkdir(dies)
        except FileExistsError:
            return plain(self)
        os.kill(os.getpid(), signal.SIGKILL)

    graph.GraphLowering.compile_to_module = compile_to_module


if __name__ == "__main__":
    print(json.dumps(train(*sys.argv[1:])))
