"""A kernel that was compiled in a worker is the one that this process would have compiled: its key, and its bytes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import SOURCE, TESTS, isolated_environment

# Of the same Python and Triton as the tests: a fresh one, since what is compiled here shall be in no cache.
PROCESS = [sys.executable, "-m", "isolation.encoding_process"]


def compile_both(tmp_path, *modules):
    """What came of each case of these modules, by name."""
    environment = isolated_environment(tmp_path) | {"SAFECACHE": "0", "PYTHONPATH": f"{SOURCE}:{TESTS}", "PATH": "/bin"}
    done = subprocess.run([*PROCESS, *modules], env=environment, text=True, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def is_same(result):
    return result.get("same key") and not result["differing"] and result["way"] == result["expected"]


@pytest.mark.timeout(900)
def test_kernels_compile_in_a_worker_to_the_same_key_and_bytes(tmp_path):
    """As source: the user's modules are not imported there. Those that call Python are sent as IR."""
    results = compile_both(tmp_path, "tutorials", "surroundings", "operations", "generated", "gluon", "front_end")
    assert {name: result for name, result in results.items() if not is_same(result)} == {}
    assert len(results) >= 65


@pytest.mark.timeout(900)
def test_kernel_as_inductor_generates_it_compiles_without_torch_to_the_same_key_and_bytes(tmp_path):
    results = compile_both(tmp_path, "inductor")
    assert {name: result for name, result in results.items() if not is_same(result)} == {}
    assert len(results) == 1
