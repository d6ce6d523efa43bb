"""On a GPU: the kernels that a wrapper of C++ loads by their paths are verified before it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE, isolated_environment

torch = pytest.importorskip("torch")
# Four starts, in each of which even stock torch compiles C++ for more than a minute.
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(1200),
]

PROGRAM = Path(__file__).with_name("cpp_wrapper_scene.py")


def run(base: Path, **variables: str) -> dict:
    environment = (
        os.environ | isolated_environment(base) | {"PYTHONPATH": str(SOURCE), "TMPDIR": str(base), **variables}
    )
    done = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"errors": done.stderr}


def test_kernel_that_was_exchanged_is_made_anew(tmp_path):
    cold = run(tmp_path)
    assert cold["close"] and "safecache:" not in cold["errors"], cold
    warm = run(tmp_path)
    assert warm["close"] and warm["inductor"].get("fxgraph_cache_hit") == 1, warm
    kernels = list(Path(isolated_environment(tmp_path)["TORCHINDUCTOR_CACHE_DIR"]).glob("*/*.cubin"))
    assert kernels
    for kernel in kernels:
        content = kernel.read_bytes()
        kernel.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    healed = run(tmp_path)
    assert healed["close"], healed
    assert healed["errors"].count("safecache:") == len(kernels), healed
    again = run(tmp_path)
    assert again["close"] and "safecache:" not in again["errors"], again
    assert again["inductor"].get("fxgraph_cache_hit") == 1, again
