"""The work of ``safecache demo``: a small transformer, compiled, forward and backward.

Run as a program, in a process of its own, so that with ``--stock`` nothing of safecache is imported. Prints one line of
JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time
from typing import Any


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stock", action="store_true", help="do not import safecache")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--launcher", action="store_true", help="put a launcher that does not pickle into every entry")
    parser.add_argument("--strict-autograd-cache", action="store_true", help="as torch sets it in aot_compile")
    return parser.parse_args()


def _plant_launcher() -> None:
    """Plant a reference to a launcher made by exec in a throw-away namespace, as Inductor makes them."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    namespace: dict[str, Any] = {}
    exec("def launcher(*args, stream): return None", namespace)  # noqa: S102  our own text
    make_entry = AOTAutogradCache.make_entry

    def make(*args: Any, **kwargs: Any) -> Any:
        entry = make_entry(*args, **kwargs)
        entry.runtime_metadata.launchers = [namespace["launcher"]]
        return entry

    AOTAutogradCache.make_entry = staticmethod(make)


def _train_step(layers: int, device: str) -> tuple[float, float]:
    """Compile and run one step. Returns its seconds, and the largest difference to eager, over result and gradients."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    x = torch.randn(2, 16, 64).to(device)
    start = time.perf_counter()
    y = torch.compile(model)(x)
    y.square().sum().backward()
    if device != "cpu":
        torch.accelerator.synchronize()
    seconds = time.perf_counter() - start
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = model(x)
    expected.square().sum().backward()
    # Relative to the largest gradient: those of the key biases are zero up to rounding.
    scale = max(p.grad.abs().max() for p in model.parameters())
    differences = [(g - p.grad).abs().max() / scale for g, p in zip(gradients, model.parameters(), strict=True)]
    return seconds, max(float(difference) for difference in [(y - expected).abs().max(), *differences])


def _measure_cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Do the work and print the result."""
    arguments = _parse_arguments()
    # The warnings of torch and safecache are part of the report, which the demo shows.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    if not arguments.stock:
        import safecache
    import torch._functorch.config
    import torch._inductor.compile_fx
    from torch._dynamo.utils import counters

    if arguments.launcher:
        _plant_launcher()
    answer: dict[str, Any] = {"torch": torch.__version__, "error": None}
    started = _measure_cpu_seconds()
    try:
        with torch._functorch.config.patch(strict_autograd_cache=arguments.strict_autograd_cache):
            answer["seconds"], answer["difference"] = _train_step(arguments.layers, arguments.device)
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    answer["cpu_seconds"] = _measure_cpu_seconds() - started
    aot, inductor = counters["aot_autograd"], counters["inductor"]
    answer["aot_hits"], answer["fx_hits"] = aot["autograd_cache_hit"], inductor["fxgraph_cache_hit"]
    if not arguments.stock:
        import safecache

        answer["stats"] = safecache.stats()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
