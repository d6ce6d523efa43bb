"""Helion's autotuner skips a configuration that crashes Triton's compiler, in its own process, and finds another one."""

from __future__ import annotations

import json

import pytest
from conftest import isolated_environment, python

torch = pytest.importorskip("torch")
pytest.importorskip("helion", exc_type=ImportError)  # of Helion too, where torch is too old for it
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEADLY = 64
# Helion reads the source of a kernel from its file.
KERNELS = f'''
import helion
import helion.language as hl
import torch

COPY = """
tl.inline_asm_elementwise("mov.b32 $0, $7;" if {{0}}.shape[0] == {DEADLY} else "mov.b32 $0, $1;", "=r,r", [{{0}}],
                          dtype=tl.int32, is_pure=True, pack=1)
"""

@helion.kernel(
    configs=[helion.Config(block_sizes=[size], num_warps=4) for size in (32, {DEADLY}, 128)],
    static_shapes=True,
    autotune_precompile=None,
    autotune_benchmark_subprocess=False,
    autotune_baseline_fn=torch.clone,
)
def copy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        block = x[tile]
        out[tile] = hl.inline_triton(COPY, args=(block,), output_like=block)
    return out
'''
CODE = """
import json
import safecache
import torch
import helion_kernels

x = torch.arange(1024, dtype=torch.int32, device="cuda")
assert torch.equal(helion_kernels.copy(x), x)
best = helion_kernels.copy.bind((x,))._config
print(json.dumps({"best": best["block_sizes"], "stats": safecache.stats()}))
"""
CLASSIFY = """
import pickle
import safecache
from helion.autotuner.logger import classify_triton_exception
from safecache.isolation import crashes

names = dict.fromkeys(("signal", "kernel", "config", "report"))
error = crashes.make_crash("safecache: Triton's compiler crashed.", names | {"how": "signal", "stage": "ptx"})
print(classify_triton_exception(error), classify_triton_exception(pickle.loads(pickle.dumps(error))))
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "helion_kernels.py").write_text(KERNELS)
    variables = isolated_environment(tmp_path) | {"SAFECACHE_ISOLATE": "1", "HELION_CACHE_DIR": str(tmp_path)}
    variables["HELION_KEEP_CACHE"] = "1"  # else Helion removes the cache that it tunes in, reports included

    def run(code):
        done = python(code, env=variables, path=tmp_path, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1], done.stderr

    return run


def test_crash_is_an_error_that_helion_skips(run):
    classes, _ = run(CLASSIFY)
    assert set(classes.split()) <= {"debug", "warn"}


def test_kernel_is_tuned_among_the_configurations_that_do_not_crash(run, tmp_path):
    answer, log = run(CODE)
    said = json.loads(answer)
    assert said["best"] in ([32], [128]) and said["stats"]["compile crashed"] == 1
    assert len(list(tmp_path.rglob(".safecache/crashes/*/reproduce.py"))) == 1, log
