"""No file's bytes are unpickled, compiled, imported, loaded or read by a compiler that nothing attests.

Of a whole process tree, cold and then warm: what it opens, as strace sees it, and what Python's audit events, pickle and
the gate say in every interpreter of it.
"""

from __future__ import annotations

import pytest
from census import watched

# Three processes that do all there is, under strace.
pytestmark = [pytest.mark.default_release, pytest.mark.timeout(900), pytest.mark.xdist_group("census")]
# Of what a warm process loads, that which says whether it was a hit.
HITS = ["function", "model", "bundled", "graph_module", "precompile", "profile", "memo"]
# Of the others stock torch does nothing that it does not do of one of these.
STOCK = ("entries", "package", "extension", "extension of Python", "Triton's kernel")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What was seen of a cold process, of a warm one, and of one of stock torch in the same directories."""
    base = tmp_path_factory.mktemp("census") / "all"
    cold, warm = watched.run(base, "cold"), watched.run(base, "warm")
    return {"cold": cold, "warm": warm, "stock": watched.run(base, "warm", steps=STOCK, SAFECACHE="0")}


@pytest.mark.parametrize("warmth", ["cold", "warm"])
def test_all_that_is_used_is_attested(runs, warmth):
    seen = runs[warmth]
    assert seen.unattested == []
    assert {finding.used for finding in seen.used} >= {"compile", "dlopen", "import"}


def test_warm_process_uses_what_the_cold_one_has_left(runs):
    results = runs["warm"].results
    assert results["entries"]["aot"]["hit"] == 1 and [results[name] for name in HITS] == [True] * len(HITS)
    assert results["operator"] == {"compiled": 0} and results["C++ wrapper"] == {"hits": 1}
    assert set(results["package"].values()) == {""}


def test_census_sees_what_stock_torch_uses(runs):
    seen = runs["stock"]
    assert set(seen.used) <= set(seen.unattested)
    assert {finding.used for finding in seen.unattested} == {"", "compile", "dlopen", "import", "unpickle"}
    opened = [finding.what for finding in seen.unattested if not finding.used]
    for ending in (".so", ".py", ".pt2", ".cubin"):
        assert any(path.endswith(ending) for path in opened), ending
