"""Tuning on a real GPU where some configurations crash Triton's compiler: the best of the rest is found, and is right."""

from __future__ import annotations

import json

import pytest
from conftest import TESTS, Home, isolated_environment, python

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# The first and the last configuration are sound.
CODE = """
import json, sys
import safecache
import torch
import crashing_kernels

kernel = crashing_kernels.autotuned(0, 1, 2, 3)
x = torch.arange(128, dtype=torch.int32, device="cuda")
y = torch.zeros_like(x)

def double(x, y):
    kernel[(1,)](x, y, N=128)
    return y + 1

run = torch.compile(double) if sys.argv[1:] == ["inductor"] else double
answer = run(x, y)
torch.cuda.synchronize()
assert torch.equal(y, 2 * x) and torch.equal(answer, 2 * x + 1)
best = kernel.best_config.kwargs["KIND"] if run is double else None
timings = {c.kwargs["KIND"]: t[0] for c, t in (getattr(kernel, "configs_timings", None) or {}).items()}
print(json.dumps({"best": best, "timings": {k: str(t) for k, t in timings.items()}, "stats": safecache.stats()}))
"""


@pytest.fixture
def tuned(tmp_path):
    home = Home(tmp_path, None)
    variables = {"SAFECACHE_ISOLATE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

    def run(*arguments):
        environment = isolated_environment(tmp_path) | variables
        done = python(CODE, env=environment, path=TESTS / "crashes", timeout=280, arguments=arguments)
        assert done.returncode == 0, done.stderr
        print(done.stdout, done.stderr)
        crashed = list(home.base.rglob(".safecache/crashes/*/reproduce.py"))
        return json.loads(done.stdout.splitlines()[-1]), len(crashed)

    return run


def test_triton_finds_the_best_of_the_rest(tuned):
    for _ in ("cold", "warm"):
        said, crashed = tuned()
        assert said["best"] in (0, 3) and crashed == 2
        assert {kind for kind, time in said["timings"].items() if time == "inf"} == {"1", "2"}


def test_inductor_compiles_with_the_rest(tuned):
    for _ in ("cold", "warm"):
        said, crashed = tuned("inductor")
        assert crashed == 2, said
