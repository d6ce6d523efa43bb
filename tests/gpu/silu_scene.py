"""A bf16 model with a user's Triton kernel, taken one way in a process of its own; run by test_scenario_silu.py.

Prints one JSON line for each thing done, as soon as it is done: what follows may end the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time

if os.environ["SAFECACHE"] == "1":
    import safecache  # noqa: F401  where it is 0, stock torch has nothing of it

import torch
import triton
import triton.language as tl
from scenes.load_scenes import MS_NOEXEC, hide
from torch._dynamo.utils import counters
from torch.library import triton_op, wrap_triton

DEVICE = "cuda"
WIDTH = 256
BATCHES = (2, 7, 64, 333)
SCALES = (1.0, 6.0)


@triton.jit
def silu_kernel(in_ptr, out_ptr, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    x = tl.load(in_ptr + index, mask).to(tl.float32)
    tl.store(out_ptr + index, (x / (1.0 + tl.exp(-x))).to(tl.bfloat16), mask)


def launch(kernel, x):
    out = torch.empty_like(x)
    kernel[((x.numel() + 1023) // 1024,)](x, out, x.numel(), BLOCK=1024)
    return out


def silu_plain(x):
    return launch(silu_kernel, x)


@triton_op("safecache_scenario::silu", mutates_args={})
def silu_op(x: torch.Tensor) -> torch.Tensor:
    return launch(wrap_triton(silu_kernel), x)


ACTIVATIONS = {"op": silu_op, "plain": silu_plain}


class Block(torch.nn.Module):
    """A gated feed-forward block, as in language models."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation
        torch.manual_seed(0)
        self.gate, self.up, self.down = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + self.down(self.activation(self.gate(x)) * self.up(x))


def make(activation, dtype=torch.bfloat16):
    # Rounded to bf16 first of all: the reference has the same weights.
    return Block(activation).to(torch.bfloat16).to(DEVICE, dtype).requires_grad_(False)


def inputs():
    for batch in BATCHES:
        for scale in SCALES:
            generator = torch.Generator().manual_seed(batch)
            yield (torch.randn(batch, WIDTH, generator=generator) * scale).bfloat16().to(DEVICE)


def numbers(run):
    """Every bit of what is computed, as a digest; and how far the worst is from float64, of the largest."""
    reference = make(torch.nn.functional.silu, torch.float64)
    digest, error = hashlib.sha256(), 0.0
    for x in inputs():
        y, expected = run(x), reference(x.double())
        assert y.dtype == torch.bfloat16 and y.shape == x.shape
        digest.update(str(y.view(torch.int16).tolist()).encode())
        error = max(error, ((y.double() - expected).abs().max() / expected.abs().max()).item())
    return {"digest": digest.hexdigest()[:16], "error": round(error, 6)}


def say(step, function):
    """Do one step and print what came of it; what it returned, None if it raised."""
    start = time.perf_counter()
    try:
        result, facts = function()
    except Exception as error:
        text = re.sub("0x[0-9a-f]+", "0x…", str(error)).strip()
        result, facts = None, {"raised": type(error).__name__, "text": text[:2000]}
    facts |= {"step": step, "seconds": round(time.perf_counter() - start, 2)}
    print(json.dumps(facts), flush=True)
    return result


def compile_it(name):
    """torch.compile, with a dynamic batch.

    One registration in a process: AOTAutograd's key of a plain call has in it how many kernels were called before.
    """

    def run():
        facts = numbers(torch.compile(make(ACTIVATIONS[name]), fullgraph=True, dynamic=True))
        aot, inductor = counters["aot_autograd"], counters["inductor"]
        hits = {"aot": aot["autograd_cache_hit"], "fx": inductor["fxgraph_cache_hit"]}
        misses = {"aot": aot["autograd_cache_miss"], "fx": inductor["fxgraph_cache_miss"]}
        return None, facts | {"hits": hits, "misses": misses, "bypasses": aot["autograd_cache_bypass"]}

    say("compile", run)


def build(registration, mode, package):
    """Export with a dynamic batch, compile ahead of time, load where it was compiled."""

    def export():
        batch = torch.export.Dim("batch", min=2, max=1024)
        model, x = make(ACTIVATIONS[registration]), next(iter(inputs()))
        exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}, strict=mode == "strict")
        return exported, {}

    def package_it():
        path = torch._inductor.aoti_compile_and_package(exported, package_path=package)
        return path, {"bytes": os.path.getsize(path)}

    exported = say("export", export)
    if exported is not None:
        say("run exported", lambda: (None, numbers(exported.module())))
        if say("package", package_it) is not None:
            load(package, "load in the same process")


def load(package, step="load"):
    return say(step, lambda: (None, numbers(torch._inductor.aoti_load_package(package))))


def load_where_noexec(package, directory, home):
    """Load where packages are unpacked to a noexec mount, do as the error says, and load again."""
    torch.zeros(1, device=DEVICE)
    try:
        hide(directory, MS_NOEXEC, keep=[home])
    except OSError as error:
        print(json.dumps({"step": "mount", "raised": type(error).__name__, "text": str(error)}), flush=True)
        return
    text = []

    def refused():
        try:
            return None, numbers(torch._inductor.aoti_load_package(package))
        except Exception as error:
            text.append(str(error))
            raise

    say("load from noexec", refused)
    advice = re.search(r"export TMPDIR=(\S+)$|(mount -o remount,exec \S+)$", "".join(text))
    if advice is None:
        return
    if advice[1]:
        os.environ["TMPDIR"] = advice[1]
    else:
        subprocess.run(advice[2].split(), check=True)
    load(package, "load as advised")


def main(step, *arguments):
    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]}
    print(json.dumps({"step": "versions", "safecache": "safecache" in sys.modules, **versions}), flush=True)
    {"compile": compile_it, "build": build, "load": load, "noexec": load_where_noexec}[step](*arguments)
    if safecache := sys.modules.get("safecache"):
        print(json.dumps({"step": "stats", "stats": safecache.stats()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
