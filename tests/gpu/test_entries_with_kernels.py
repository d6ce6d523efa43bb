"""Entries that carry Triton kernels: sealed, verified and hit on a real GPU, and refused when altered."""

from __future__ import annotations

import json

import pytest
from conftest import Home, isolated_environment, python

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CODE = """
import json, time
import safecache
import torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().double()
x = torch.randn(2, 16, 64, device="cuda", dtype=torch.double)
start = time.perf_counter()
y = torch.compile(model)(x)
y.square().sum().backward()
torch.cuda.synchronize()
seconds = time.perf_counter() - start
torch.testing.assert_close(y, model(x))
aot, inductor = counters["aot_autograd"], counters["inductor"]
hits = aot["autograd_cache_hit"], inductor["fxgraph_cache_hit"]
print(json.dumps({"hits": hits, "stats": safecache.stats(), "seconds": seconds, "torch": torch.__version__}))
"""


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path, None)
    home.environment = isolated_environment(tmp_path)
    return home


def step(home, **env):
    done = python(CODE, env=home.environment | env, timeout=280)
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def of_entries(said):
    others = ("code ", "aot ", "fx ", "triton ")
    return {name: number for name, number in said["stats"].items() if not name.startswith(others)}


def test_warm_start_hits_verified_entries_of_this_gpu(home):
    from safecache.reporting.kinds import Kind
    from safecache.signing import keyring, seal

    cold, warm = step(home), step(home)
    assert of_entries(cold) == {"sealed": 3, "saved": 3} and cold["hits"] == [0, 0]
    assert of_entries(warm) == {"verified": 3} and warm["hits"] == [1, 2]
    assert cold["stats"]["code sealed"] > 0 and "unsealed" not in warm["stats"]
    keys = keyring.load(None, home.environment["XDG_CONFIG_HOME"])
    (entry,) = home.aot_entries
    verdict = seal.verify(entry.read_bytes(), Kind.AOT_ENTRY, entry.parent.name, keys.find)
    capability = torch.cuda.get_device_capability()
    assert verdict.provenance["gpu"] == "sm_{}{}".format(*capability)
    assert verdict.provenance["triton"]


def test_altered_graph_with_kernels_is_refused_and_healed(home):
    step(home)
    for path in home.fx_entries:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    first, second = step(home), step(home)
    assert first["hits"] == [0, 0] and first["stats"]["quarantined"] >= 1, first
    assert second["hits"] == [1, 2], second


@pytest.mark.parametrize("pattern", ["*.cubin", "tri*.json", "*.ttir"])
def test_altered_kernel_files_are_put_right_from_the_entry(home, pattern):
    step(home)
    files = [p for p in (home.base / "triton").glob(f"**/{pattern}") if ".safecache" not in p.parts]
    before = {path: path.read_bytes() for path in files}
    assert before
    for path, content in before.items():
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    warm = step(home)
    assert warm["hits"] == [1, 2] and warm["stats"]["damaged"] > 0, warm
    again = step(home)
    assert again["hits"] == [1, 2] and "damaged" not in again["stats"], again
