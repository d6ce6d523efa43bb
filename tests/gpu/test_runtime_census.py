"""On a GPU: no kernel's bytes are loaded, compiled or unpickled that nothing attests, in any process."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from census import watched

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
    pytest.mark.timeout(900),
]
PROGRAM = Path(__file__).with_name("census_program.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What was seen of a cold process, of a warm one, and of one of stock torch in the same directories."""
    base = tmp_path_factory.mktemp("census") / "all"
    run = partial(watched.run, base, program=PROGRAM, CXX="/usr/bin/g++")  # as for a package's tests
    return {"cold": run("cold"), "warm": run("warm"), "stock": run("warm", SAFECACHE="0")}


@pytest.mark.parametrize("warmth", ["cold", "warm"])
def test_all_that_is_used_is_attested(runs, warmth):
    assert runs[warmth].unattested == []


def test_warm_process_uses_what_the_cold_one_has_left(runs):
    results = runs["warm"].results
    assert results["graph"]["aot"] == 1 and results["C++ wrapper"]["fx"] == 1, results


def test_census_sees_the_kernels_that_stock_torch_loads(runs):
    opened = [finding.what for finding in runs["stock"].unattested if not finding.used]
    for ending in (".cubin", ".so", ".py", ".pt2"):
        assert any(path.endswith(ending) for path in opened), (ending, opened)
