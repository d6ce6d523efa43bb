"""On a GPU: entries that refer to launchers are saved by one process, and hit by the next, whatever made the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SOURCE, TESTS, isolated_environment

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CASES = [
    "pointwise",
    "reduction",
    "matmul",
    "user_kernel",
    "user_autotune",
    "combo_kernels",
    "coordinate_descent",
]


def process(environment, *arguments):
    """Run the cases in a fresh interpreter with the tests' modules; what it says."""
    command = [sys.executable, str(Path(__file__).with_name("launcher_cases.py")), *arguments]
    environment = environment | {"PYTHONPATH": f"{SOURCE}:{TESTS}:{environment.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[[], ["strict"]], ids=["torch-lax", "torch-strict-bundled"])
def two_processes(request, tmp_path_factory):
    """What a cold and a warm process said, of stock torch and with safecache."""

    def run_twice(who):
        active = {"SAFECACHE": "0" if who == "stock" else "1"}
        environment = os.environ | isolated_environment(tmp_path_factory.mktemp(who)) | active
        return [process(environment, *request.param) for _ in range(2)]

    with ThreadPoolExecutor() as pool:
        return dict(zip(["stock", "safecache"], pool.map(run_twice, ["stock", "safecache"]), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_stock_torch_saves_nothing(two_processes, case):
    cold, warm = (answer[case] for answer in two_processes["stock"])
    for answer in (cold, warm):
        assert "PicklingError" in answer["error"] if "error" in answer else not answer["fx"] + answer["aot"], answer


@pytest.mark.parametrize("case", CASES)
def test_next_process_hits_and_computes_the_same(two_processes, case):
    cold, warm = (answer[case] for answer in two_processes["safecache"])
    assert "error" not in cold and not cold["aot"], cold
    assert "error" not in warm and warm["aot"] == 1 and not warm["miss"], warm
    assert warm["launchers"] >= 1, "the launchers in the entry came back"
