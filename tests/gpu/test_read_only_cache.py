"""A warm cache that cannot be written, as in an image: it hits like one that can, and says at most one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE, isolated_environment

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(900),
]

CODE = """
import json, os, sys, time
if sys.argv[1] != "stock":
    import safecache
import torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().double().eval()
x = torch.randn(2, 16, 64, device="cuda", dtype=torch.double)
start = time.perf_counter()
with torch.no_grad():
    y = torch.compile(model)(x)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    torch.testing.assert_close(y, model(x))
found = {"seconds": seconds, "torch": torch.__version__, "place": os.environ.get("TORCHINDUCTOR_CACHE_DIR")}
found |= {name: counters["inductor"][name] for name in counters["inductor"] if "cache" in name or "bundler" in name}
found["aot"] = counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps(found | {"stats": safecache.stats() if "safecache" in sys.modules else {}}))
"""

# Where Triton keeps its kernels: below Inductor's cache, as by default, or beside it, as a server sets it.
LAYOUTS = {"below": None, "beside": "triton"}


def start(base, layout, who, *, read_only=False):
    """What a process of that kind finds, and how many lines it writes."""
    environment = os.environ | isolated_environment(base)
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(base / "cache")}
    environment.pop("TRITON_CACHE_DIR", None)
    if LAYOUTS[layout]:
        environment["TRITON_CACHE_DIR"] = str(base / LAYOUTS[layout])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    places = [base / name for name in ("cache", "triton") if (base / name).exists()]
    bind = "".join(f"mount --bind {place} {place}; mount -o remount,bind,ro {place}; " for place in places)
    prefix = ["unshare", "-m", "sh", "-ec", f'{bind}exec "$@"', "sh"] if read_only else []
    command = [*prefix, sys.executable, "-c", CODE, who]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "UserWarning" not in line]
    return json.loads(done.stdout.splitlines()[-1]) | {"lines": lines}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_warm_cache_that_cannot_be_written_hits_like_one_that_can(tmp_path, layout):
    for who in ("stock", "safecache"):
        base = tmp_path / who
        base.mkdir()
        start(base, layout, who)
        warm = start(base, layout, who)
        baked = start(base, layout, who, read_only=True)
        for kind, found in (("warm", warm), ("read-only", baked)):
            print(json.dumps({"layout": layout, "who": who, "start": kind} | found, indent=1))
        missed = {name: number for name, number in baked["stats"].items() if "miss" in name}
        assert baked["aot"] == warm["aot"] == 1
        if who == "safecache":
            assert missed == {name: number for name, number in warm["stats"].items() if "miss" in name}
            assert "unwritable" not in baked["stats"]
            assert len(baked["lines"]) <= 1
