"""Everything with a kernel in it that is kept on disk: made in a first process, ``cold``, and used in a second, ``warm``."""

from __future__ import annotations

import json
import os
import sys

import safecache  # noqa: F401 # isort: skip - before torch, as in a server
import torch
from scenes import triton_kernels
from torch._dynamo.utils import counters


def compiled(**options):
    """Forward and backward: one kernel without a reduction, one with, one of the user's."""

    @torch.compile(options=options)
    def run(x, w):
        return torch.nn.functional.gelu(x * w).softmax(-1)

    torch.manual_seed(0)
    x, w = torch.randn(64, 512, device="cuda"), torch.randn(512, device="cuda", requires_grad=True)
    y = run(x, w)
    y.sum().backward()
    torch.testing.assert_close(y, torch.nn.functional.gelu(x * w).softmax(-1))
    return {"aot": counters["aot_autograd"]["autograd_cache_hit"], "fx": counters["inductor"]["fxgraph_cache_hit"]}


def wrapped():
    @torch.compile(options={"cpp_wrapper": True})
    def run(x):
        return torch.nn.functional.silu(x) * 2

    x = torch.linspace(-4, 4, 4096, device="cuda")
    torch.testing.assert_close(run(x), torch.nn.functional.silu(x) * 2)
    return {"fx": counters["inductor"]["fxgraph_cache_hit"]}


def launched(kernel, **meta):
    """A kernel of Triton's own, without torch.compile."""
    x = torch.randn(4096, device="cuda")
    y = torch.empty_like(x)
    kernel[lambda meta: (4096 // meta["XBLOCK"],)](x, y, 4096, **meta)
    torch.testing.assert_close(y, x * 2)
    return True


def packaged(path, warm):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.silu(x) * 2

    x = torch.linspace(-4, 4, 4096, device="cuda")
    with torch.no_grad():
        if not warm:
            torch._inductor.aoti_compile_and_package(torch.export.export(Model(), (x,)), package_path=path)
        torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x), Model()(x))
    return True


def carried(path, warm):
    """A mega-cache: everything of this process so far."""
    if not warm:
        with open(path, "wb") as file:
            file.write(torch.compiler.save_cache_artifacts()[0])
        return True
    with open(path, "rb") as file:
        return torch.compiler.load_cache_artifacts(file.read()) is not None


def steps(base, warm):
    """(name, what to do), in the order in which to do it."""
    yield "graph", compiled
    yield "graph that measures", lambda: compiled(coordinate_descent_tuning=True)
    yield "mega-cache", lambda: carried(os.path.join(base, "mega"), warm)
    yield "C++ wrapper", wrapped
    yield "package", lambda: packaged(os.path.join(base, "package.pt2"), warm)
    yield "kernel", lambda: launched(triton_kernels.triton_poi_scale, XBLOCK=128)
    yield "measured kernel", lambda: launched(triton_kernels.autotuned_scale)
    yield (
        "kernel with a function",
        lambda: launched(triton_kernels.user_kernel, FUNCTION=triton_kernels.double, XBLOCK=64),
    )


if __name__ == "__main__":
    base, warmth = sys.argv[1:]
    for name, step in steps(base, warmth == "warm"):
        torch._dynamo.reset()
        counters.clear()
        print(json.dumps([name, step()]), flush=True)
