"""Compiles every case in one process and prints one JSON line; run with "strict" for torch's mode as argument.

With "alone" it is torch as it lies there, for test_patched_launchers.py; else test_launchers.py runs it with safecache.

Everywhere the state that stopped vLLM's move to torch 2.12: a launcher, as a key, is left behind in what is saved.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from unittest import mock

import torch
from scenes.triton_kernels import autotuned_scale, triton_poi_scale
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config, output_code
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

if "alone" not in sys.argv:
    import safecache  # noqa: F401  SAFECACHE=0 makes this stock torch


def pointwise(x, y):
    return torch.sin(x) * y + 1


def reduction(x, y):
    return (x * y).sum(-1).softmax(-1)


def matmul(x, y):
    return torch.relu(x @ y)


def user_kernel(x, y):
    out = torch.empty_like(x)
    triton_poi_scale[(x.numel() // 128,)](x, out, x.numel(), XBLOCK=128)
    return out + y


def user_autotune(x, y):
    out = torch.empty_like(x)
    autotuned_scale[lambda meta: (x.numel() // meta["XBLOCK"],)](x, out, x.numel())
    return out + y


def combo_kernels(x, y):
    return x.sin(), y[:64].cos(), (x * 2)[:32].exp()


CASES = {
    "pointwise": (pointwise, {}),
    "reduction": (reduction, {}),
    "matmul": (matmul, {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}),
    "user_kernel": (user_kernel, {}),
    "user_autotune": (user_autotune, {}),
    "combo_kernels": (combo_kernels, {"combo_kernels": True}),
    "coordinate_descent": (pointwise, {"coordinate_descent_tuning": True}),
}

prepare_for_pickle = CachingAutotuner.prepare_for_pickle
prepare_for_serialization = output_code.CompiledFxGraph.prepare_for_serialization


def make_launchers(autotuner):
    for result in autotuner.compile_results:
        try:
            yield result.make_launcher()
        except Exception as error:  # a config that needs more shared memory than there is
            print("no launcher:", error, file=sys.stderr)


def prepare_as_in_the_release_candidate(self):
    behind = dict.fromkeys(make_launchers(self), "failed")
    old = prepare_for_pickle(self)
    self.benchmark_failure_reasons = behind
    return old


def prepare_graph(self):
    """Where no autotuner is put aside (it is not static), the graph itself refers to the launchers."""
    prepare_for_serialization(self)
    autotuners = [found for found in gc.get_objects() if type(found) is CachingAutotuner]
    self.reasons = [dict.fromkeys(autotuner.launchers, "failed") for autotuner in autotuners]


def run(name):
    function, options = CASES[name]
    torch._dynamo.reset()
    gc.collect()
    counters.clear()
    torch.manual_seed(0)
    x, y = torch.randn(2, 256, 256, device="cuda").unbind()
    with config.patch(options):
        result = torch.compile(function)(x, y)
    torch.testing.assert_close(result, function(x, y), atol=2e-2, rtol=2e-2)
    aot, inductor = counters["aot_autograd"], counters["inductor"]
    return {
        "aot": aot["autograd_cache_hit"],
        "fx": inductor["fxgraph_cache_hit"],
        "miss": inductor["fxgraph_cache_miss"],
        "launchers": len(revived()),
    }


def revived():
    """Launchers that came out of an entry; each must be able to load its kernel."""
    if hasattr(triton_heuristics, "_safecache_picklable_launchers"):
        waiting = [o for o in gc.get_objects() if type(o) is triton_heuristics._FirstCall]
        return [function.load() for function in waiting]
    launchers = sys.modules.get("safecache.launchers")
    if launchers is None:
        return []
    found = [o for o in gc.get_objects() if type(o) is launchers.Launcher and type(o.func) is launchers._Unloaded]
    return [launcher.load() for launcher in found]


def main(strict):
    import triton

    answers = {"torch": torch.__version__, "triton": triton.__version__}
    with (
        mock.patch.object(CachingAutotuner, "prepare_for_pickle", prepare_as_in_the_release_candidate),
        mock.patch.object(output_code.CompiledFxGraph, "prepare_for_serialization", prepare_graph),
        functorch_config.patch(strict_autograd_cache=strict, bundled_autograd_cache=strict),
    ):
        for name in CASES:
            try:
                answers[name] = run(name)
            except Exception as error:
                cause = getattr(error, "inner_exception", error)
                answers[name] = {"error": f"{type(cause).__name__}: {cause}", "traceback": traceback.format_exc()}
    print(json.dumps(answers))


if __name__ == "__main__":
    main(strict="strict" in sys.argv)
