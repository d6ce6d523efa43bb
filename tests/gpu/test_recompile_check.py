"""On a GPU, hits of the sample are compiled in the process: for training and serving, with the program's own kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.testing import isolated

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# What the operator adds is in nothing that could be compared.
PROGRAM = """
import json, os, sys, time
began = time.perf_counter()
import torch, triton, triton.language as tl
library = torch.library.Library("checked", "DEF")
library.define("shifted(Tensor x) -> Tensor")
library.impl("shifted", lambda x: x + int(os.environ["NUMBER"]), "CompositeImplicitAutograd")
import safecache

@triton.jit
def doubled_kernel(source, target, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, tl.load(source + places, mask=places < count) * 2, mask=places < count)

@torch.library.triton_op("checked::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(x)
    torch.library.wrap_triton(doubled_kernel)[(triton.cdiv(x.numel(), 256),)](x, made, x.numel(), 256)
    return made

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.first = torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width)
        self.second = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.second(torch.nn.functional.gelu(self.first(torch.ops.checked.shifted(self.norm(x)))))

torch.manual_seed(0)
model = torch.nn.Sequential(*(Block(128) for _ in range(4))).cuda()
given = torch.randn(64, 128, device="cuda")
if "training" in sys.argv:
    loss = torch.compile(model)(given).square().mean()
    loss.backward()
    value = loss.item() + model[0].first.weight.grad.abs().sum().item()
else:
    with torch.no_grad():
        served = torch.compile(lambda x: doubled(model(x)), mode="reduce-overhead")
        for size in (64, 64, 32, 32, 48, 48):
            value = served(given[:size]).sum().item()
torch.cuda.synchronize()
print(json.dumps({"value": value, "stats": safecache.stats(), "seconds": time.perf_counter() - began}))
"""


@pytest.fixture
def run(tmp_path):
    """Run the program, with the operator adding a number; what it says, and its stderr."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = (
        os.environ | isolated(str(tmp_path / "caches")) | {"SAFECACHE_ASSUME_UNCHANGED": "checked.shifted.default"}
    )
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH", ""))))

    def run_program(*words, number=1, **settings):
        command = [sys.executable, str(tmp_path / "program.py"), *words]
        done = subprocess.run(
            command,
            env=environment | settings | {"NUMBER": str(number)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run_program


@pytest.mark.parametrize("what", ["training", "serving"])
def test_planted_stale_key_is_found_and_honest_hits_are_alike(run, what):
    cold, _ = run(what)
    assert cold["stats"]["saved"] > 0
    warm, _ = run(what)
    assert warm["value"] == pytest.approx(cold["value"]) and warm["stats"]["aot hit"] > 0
    honest, errors = run(what, SAFECACHE_RECOMPILE_SAMPLE="1")
    alike = honest["stats"]["recompile matches"]
    assert {"recompile differs", "not recompiled", "saved"}.isdisjoint(honest["stats"]), (honest, errors)
    assert alike == warm["stats"]["aot hit"] + warm["stats"]["fx hit"], (warm, honest)
    assert honest["value"] == pytest.approx(cold["value"]) and "safecache:" not in errors
    stale, _ = run(what, number=2)
    assert stale["value"] == pytest.approx(cold["value"]), "the key leaves out what the operator does"
    checked, errors = run(what, number=2, SAFECACHE_RECOMPILE_SAMPLE="1")
    assert checked["stats"]["recompile differs"] > 0 and "+++ compiled now" in errors, (checked, errors)
    assert checked["value"] != pytest.approx(cold["value"], rel=1e-3)
    after, _ = run(what, number=2)
    assert after["value"] == pytest.approx(checked["value"]) and after["stats"]["aot hit"] > 0
    print({name: round(each["seconds"], 2) for name, each in {"cold": cold, "warm": warm, "sampled": honest}.items()})
