"""Training on a GPU in two ranks: max-autotune, activation checkpointing, DDP over gloo; with safecache and without.

What stock torch does beside it is printed, as lines of JSON.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from faults import damage
from scenarios import ranks

torch = pytest.importorskip("torch")
# Another device than a GPU is for those who change this file.
DEVICE = os.environ.get("SCENARIO_DEVICE", "cuda")
pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By who, what the ranks of a cold and of a warm run said, each in fresh processes.

    And, with safecache, of one that finds its entry cut short, and of the one after that.
    """

    def run_all(who):
        base = tmp_path_factory.mktemp("training") / who
        said = [ranks.train(base, DEVICE, stock=who == "stock") for _ in range(2)]
        if who == "safecache":
            for entry in (base / "cache").glob("aotautograd/*/[!.]*"):
                damage.truncate_to_half(entry)
            said += [ranks.train(base, DEVICE, reasons=["damaged"]), ranks.train(base, DEVICE)]
        return said

    with ThreadPoolExecutor() as pool:
        return dict(zip(["stock", "safecache"], pool.map(run_all, ["stock", "safecache"]), strict=True))


@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_ranks_agree_and_their_gradients_are_right(runs, who):
    for said in runs[who]:
        ranks.check(said)


def test_second_run_hits_in_both_ranks_what_was_verified(runs):
    _, warm, _, healed = runs["safecache"]
    for said in (warm, healed):
        ranks.check_hits(said)
        assert all(rank["stats"]["verified"] > 0 for rank in said), said


def test_numbers_are_those_of_stock(runs):
    for ours, theirs in zip(runs["safecache"][:2], runs["stock"], strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine["losses"] == pytest.approx(other["losses"], rel=1e-4)
            assert mine["parameters"] == pytest.approx(other["parameters"], rel=1e-4, abs=1e-4)
