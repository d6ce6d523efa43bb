"""A few steps of training in two ranks: max-autotune, activation checkpointing, DDP over gloo.

Run as a program with a JSON object (device, directory) as its argument, it prints what each rank says.
"""

from __future__ import annotations

import os

if os.environ.get("SAFECACHE") != "0":
    import safecache

import json
import multiprocessing
import sys
import time
import traceback

RANKS, STEPS, ROWS, WIDTH, HIDDEN = 2, 3, 64, 64, 128


def make_model():
    """Blocks whose activations are computed anew in the backward pass."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

        def forward(self, x):
            return x + self.down(functional.gelu(self.up(self.norm(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x.square().mean(-1)

    torch.manual_seed(0)
    return Model()


def batch(rank: int, step: int):
    """What a rank sees in a step: other rows than any other."""
    import torch

    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def expected_gradients(model):
    """Of the first step, in double precision, eager: the mean over the ranks, as DDP has it."""
    import copy

    reference = copy.deepcopy(model).double().cpu()
    loss = sum(reference(batch(rank, 0).double()).sum() for rank in range(RANKS)) / RANKS
    loss.backward()
    return [parameter.grad for parameter in reference.parameters()]


def train(rank: int, options: dict) -> dict:
    import torch
    import torch._inductor.config
    from torch import distributed
    from torch._dynamo.utils import counters
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group(
        "gloo", init_method=f"file://{options['directory']}/rendezvous", rank=rank, world_size=RANKS
    )
    # It splits the graph at its buckets, and refuses the operator that checkpointing is for Dynamo.
    torch._dynamo.config.optimize_ddp = False
    # The choices whose compiles take long there are those of the CPU.
    torch._inductor.config.max_autotune_gemm_backends = "ATEN" if options["device"] == "cpu" else "ATEN,TRITON"
    model = make_model().to(options["device"])
    expected = expected_gradients(model)
    parallel = DistributedDataParallel(model)
    compiled = torch.compile(parallel, mode="max-autotune")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, error, began = [], None, time.perf_counter()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = compiled(batch(rank, step).to(options["device"])).sum()
        loss.backward()
        if step == 0:
            error = max(map(relative_error, (parameter.grad for parameter in model.parameters()), expected))
        optimizer.step()
        losses.append(loss.item())
    aot, inductor = counters["aot_autograd"], counters["inductor"]
    told = {
        "error": error,
        "losses": losses,
        "parameters": [parameter.detach().double().sum().item() for parameter in model.parameters()],
        "aot": [aot["autograd_cache_hit"], aot["autograd_cache_miss"], aot["autograd_cache_bypass"]],
        "fx": [inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"]],
        "seconds": round(time.perf_counter() - began, 2),
        "torch": torch.__version__,
        "stats": safecache.stats() if "safecache" in globals() else {},
    }
    distributed.destroy_process_group()
    return told


def relative_error(gradient, expected) -> float:
    return ((gradient.double().cpu() - expected).abs().max() / expected.abs().max()).item()


def work(rank: int, options: dict, pipe) -> None:
    try:
        pipe.send(train(rank, options))
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})


def main() -> None:
    options = json.loads(sys.argv[1])
    rendezvous = os.path.join(options["directory"], "rendezvous")
    if os.path.exists(rendezvous):
        os.unlink(rendezvous)
    on_cpu = options["device"] == "cpu"
    if on_cpu:
        # Once for both: without a GPU, they can be forks.
        import torch._inductor.compile_fx  # noqa: F401
    context = multiprocessing.get_context("fork" if on_cpu else "spawn")
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(rank, options, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    told = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
