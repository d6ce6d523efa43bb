"""On a GPU, SAFECACHE=observe uses what stock torch has cached, kernels and launchers included, and seals nothing of it."""

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

PROGRAM = """
import json, sys, time
if "safecache" in sys.argv:
    import safecache
import torch, triton, triton.language as tl
from torch._dynamo.utils import counters

@triton.jit
def doubled(source, target, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, tl.load(source + places, mask=places < count) * 2, mask=places < count)

def own(x):
    made = torch.empty_like(x)
    doubled[(triton.cdiv(x.numel(), 256),)](x, made, x.numel(), 256)
    return made

torch.manual_seed(0)
block = torch.nn.Sequential(torch.nn.LayerNorm(128), torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
model, given = block.cuda(), torch.randn(64, 128, device="cuda")
began = time.perf_counter()
loss = torch.compile(lambda x: own(model(x).detach()).sum() + model(x).square().mean())(given)
loss.backward()
value = own(given).sum().item() + loss.item() + model[1].weight.grad.abs().sum().item()
said = {"value": value, "seconds": time.perf_counter() - began, "hits": counters["aot_autograd"]["autograd_cache_hit"]}
if "safecache" in sys.modules:
    said["stats"] = sys.modules["safecache"].stats()
print(json.dumps(said))
"""


def test_cache_of_stock_is_used_as_it_is_and_refused_afterwards(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | isolated(str(tmp_path / "caches"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH", ""))))
    # Triton's own, which a program has used before torch sets the variable to the one in Inductor's.
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "caches" / "cache" / "triton" / "0")

    def run(*words, **settings):
        command = [sys.executable, "program.py", *words]
        done = subprocess.run(
            command, env=environment | settings, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    def contents():
        paths = [path for path in (tmp_path / "caches" / "cache").rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in paths if ".safecache" not in path.parts}

    cold, _ = run()
    stock, _ = run()
    before = contents()
    observed, errors = run("safecache", SAFECACHE="observe")
    assert observed["value"] == pytest.approx(cold["value"]) and observed["hits"] == stock["hits"] > 0, observed
    assert observed["stats"]["unsealed"] > 2 and "sealed" not in observed["stats"], observed
    assert "quarantined" not in observed["stats"] and "would refuse kernel file" in errors, errors
    assert {path: content for path, content in contents().items() if path in before} == before
    refused, _ = run("safecache")
    assert refused["value"] == pytest.approx(cold["value"]) and refused["hits"] == 0, refused
    assert refused["stats"]["unsealed"] > 2 and refused["stats"]["sealed"] > 0, refused
    again, _ = run("safecache")
    assert again["hits"] == stock["hits"] and "sealed" not in again["stats"], again
    print({"cold": cold, "stock warm": stock, "observed": observed, "sealed warm": again})
