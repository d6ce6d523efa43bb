"""Launches kernels under each of Triton's settings, each with a cache of its own, and prints one JSON line of what came.

Run by test_scenario_triton.py, with a directory and ``cold`` or ``warm`` as arguments. No torch.compile.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from unittest import mock

import torch
import triton
import triton_mode_kernels
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.autotuner import Autotuner

import safecache  # SAFECACHE=0 makes this stock Triton

FACTOR, OVERRIDDEN = 1.5, 2.5
ROWS, COLUMNS = 64, 500

# In this order: what is overridden is made of what was dumped.
MODES = {
    "plain": {},
    "binary-only": {"TRITON_STORE_BINARY_ONLY": "1"},
    "always-compile": {"TRITON_ALWAYS_COMPILE": "1"},
    "autotuning-cache": {"TRITON_CACHE_AUTOTUNING": "1"},
    "dump": {"TRITON_KERNEL_DUMP": "1"},
    "override": {"TRITON_KERNEL_OVERRIDE": "1"},
}


def launch(factor):
    """Each kernel: the digest of what it gives, and how far that is from what float64 gives, relative to the type."""
    kernels = importlib.reload(triton_mode_kernels)  # nothing of the mode before is left in memory
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    y, exact = x.bfloat16(), x.bfloat16().double()
    n = x.numel()
    answers = {}

    def keep(name, result, reference):
        unit = torch.finfo(result.dtype).eps
        answers[name] = {
            "digest": hashlib.sha256(bytes(result.cpu().view(torch.uint8).flatten().tolist())).hexdigest(),
            "units": ((result.double() - reference).abs() / (unit * reference.abs().clamp(min=unit))).max().item(),
        }

    for name, source, reference in (("scaled-float32", x, x.double()), ("scaled-bfloat16", y, exact)):
        target = torch.empty_like(source)
        kernels.scaled[(triton.cdiv(n, 1024),)](source, target, n, FACTOR=FACTOR, BLOCK=1024)
        keep(name, target, reference * factor)
    target = torch.empty_like(x)
    kernels.softmax[(ROWS,)](x, target, COLUMNS, BLOCK=512)
    keep("softmax", target, x.double().softmax(-1))
    target = torch.empty_like(y)
    kernels.silu[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, target, n)
    keep("silu", target, torch.nn.functional.silu(exact))
    return answers


def watched(factor):
    """What was launched; what Triton has told its listener, assembled and measured meanwhile."""
    heard, calls = [], {"make_cubin": 0, "_bench": 0}

    def listen(*, src, cache_hit, **rest):
        heard.append([src.name, cache_hit])

    def counting(owner, name):
        stock = getattr(owner, name)

        def count(*arguments, **named):
            calls[name] += 1
            return stock(*arguments, **named)

        return mock.patch.object(owner, name, count)

    with counting(CUDABackend, "make_cubin"), counting(Autotuner, "_bench"), triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = listen
        answers = launch(factor)
    return {"answers": answers, "heard": sorted(heard), "assembled": calls["make_cubin"], "measured": calls["_bench"]}


def listing(directory):
    """What lies in it, without what is ours: directories too; of texts of the IR, what they say."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if ".safecache" not in path.parts:
            is_text = path.suffix in (".ttir", ".ttgir", ".llir", ".ptx")
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if is_text else ""
            found[str(path.relative_to(directory))] = digest
    return found


def override(dumped, directory):
    """Have one kernel's first IR there, with another factor; how many texts that makes."""
    texts = list(dumped.glob("*/scaled.ttir"))
    for path in texts:
        text = path.read_text()
        assert f"{FACTOR:e}" in text, text
        (directory / path.parent.name).mkdir(parents=True, exist_ok=True)
        (directory / path.parent.name / path.name).write_text(text.replace(f"{FACTOR:e}", f"{OVERRIDDEN:e}"))
    return len(texts)


def run(mode, base, step):
    dump, overriding = base / f"dump-{step}", base / "overriding"
    variables = MODES[mode] | {
        "TRITON_CACHE_DIR": str(base / mode),
        "TRITON_DUMP_DIR": str(dump),
        "TRITON_OVERRIDE_DIR": str(overriding),
    }
    texts = override(base / "dump-cold", overriding) if mode == "override" else 0
    with mock.patch.dict(os.environ, variables):
        said = watched(OVERRIDDEN if mode == "override" else FACTOR)
    return said | {"files": listing(base / mode), "dump": listing(dump), "overridden": texts}


def main(base, step):
    # Triton's helper is built once in a process, whatever mode is first.
    os.environ["TRITON_CACHE_DIR"] = str(base / "driver")
    triton.runtime.driver.active.get_current_device()
    answers = {mode: run(mode, base, step) for mode in MODES}
    told = {"torch": torch.__version__, "triton": triton.__version__, "stats": safecache.stats()}
    print(json.dumps(told | {"driver": listing(base / "driver"), "modes": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
