"""The real FlashInfer: objects that it keeps of CuTe DSL's kernels are verified. A host function needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.testing import isolated

pytest.importorskip("flashinfer", reason="needs flashinfer-python")
pytestmark = pytest.mark.xdist_group("flashinfer")

KERNEL = """
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

@cute.jit
def fill(x: cute.Tensor):
    x[0] = cutlass.Int32(41)

def compile_it():
    x = torch.zeros(4, dtype=torch.int32)
    return cute.compile(fill, from_dlpack(x, enable_tvm_ffi=True), options="--enable-tvm-ffi")
"""
PROGRAM = """
import json, sys

if "stock" not in sys.argv:
    import safecache
import kernel, torch
from flashinfer.jit import cute_dsl_core

compiled = []

def compile_it():
    compiled.append(1)
    return kernel.compile_it()

filling = cute_dsl_core.build_and_load_cute_dsl_kernel("test", "fill", compile_it, [kernel.__file__])
x = torch.zeros(4, dtype=torch.int32)
filling(x)
assert x.tolist() == [41, 0, 0, 0], x
print(json.dumps([len(compiled), {} if "stock" in sys.argv else safecache.stats()]))
"""


@pytest.fixture
def run(tmp_path):
    """Run the program: how often it compiles, safecache's counters, and its stderr."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | isolated(tmp_path) | {"FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    environment |= {"CUTE_DSL_ARCH": "sm_90a", "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path[1:]])}

    def run_program(*words, **settings):
        command = [sys.executable, "program.py", *words]
        done = subprocess.run(
            command, env=environment | settings, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        compiles, stats = json.loads(done.stdout.splitlines()[-1])
        return compiles, stats, done.stderr

    return run_program


def cached(tmp_path):
    (path,) = (tmp_path / ".cache" / "flashinfer").glob("*/cached_ops/*/fill.o")
    return path


def test_object_is_compiled_once_and_verified(run, tmp_path):
    compiles, cold, errors = run()
    assert compiles == 1 and "safecache:" not in errors, (cold, errors)
    before = cached(tmp_path).read_bytes()
    compiles, warm, errors = run()
    assert compiles == 0 and warm["code verified"] >= 1 and "safecache:" not in errors, (warm, errors)
    assert run("stock")[0] == 0 and cached(tmp_path).read_bytes() == before


@pytest.mark.parametrize(("how", "reason"), [("flipped", "damaged"), ("truncated", "damaged"), ("stock", "unsealed")])
def test_object_that_does_not_verify_is_compiled_anew(run, tmp_path, how, reason):
    run(*(["stock"] if how == "stock" else []))
    path = cached(tmp_path)
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if how == "truncated" else content)
    compiles, stats, errors = run()
    assert compiles == 1 and stats[reason] == 1 and f"[{reason}]" in errors, (stats, errors)
    compiles, stats, errors = run()
    assert compiles == 0 and reason not in stats, (stats, errors)


def test_workspace_where_others_can_write_is_left_alone(run, tmp_path):
    run()
    path = cached(tmp_path)
    before = path.stat()
    path.parent.chmod(0o777)
    compiles, stats, _ = run()
    assert compiles == 1 and path.stat() == before, stats
