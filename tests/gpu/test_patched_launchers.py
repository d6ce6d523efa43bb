"""On a GPU: torch with the source patch picklable-launchers saves entries that refer to launchers, without safecache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, isolated_environment
from patches.conftest import patched, shared_directory  # noqa: F401  fixtures
from test_launchers import CASES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def process(site, environment, *arguments):
    """Run the cases in a fresh interpreter that has these packages, and no safecache; what it says."""
    command = [sys.executable, str(Path(__file__).with_name("launcher_cases.py")), "alone", *arguments]
    environment = os.environ | environment | {"PYTHONPATH": f"{site.path}:{TESTS}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[[], ["strict"]], ids=["torch-lax", "torch-strict-bundled"])
def two_processes(request, patched, tmp_path_factory):  # noqa: F811
    """What a cold and a warm process said."""
    site, environment = patched("picklable-launchers"), isolated_environment(tmp_path_factory.mktemp("caches"))
    return [process(site, environment, *request.param) for _ in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_next_process_hits_and_computes_the_same(two_processes, case):
    cold, warm = (answer[case] for answer in two_processes)
    assert "error" not in cold and not cold["aot"], cold
    assert "error" not in warm and warm["aot"] == 1 and not warm["miss"], warm
    assert warm["launchers"] >= 1, "the launchers in the entry came back"
