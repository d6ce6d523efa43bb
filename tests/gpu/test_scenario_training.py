"""Training on a GPU in two ranks: max-autotune, activation checkpointing, DDP over gloo; with safecache and without.

What stock torch does beside it is printed, as lines of JSON.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
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
    """By who, what the ranks of a cold and of a warm run said, each in fresh processes."""

    def run_twice(who):
        base = tmp_path_factory.mktemp("training") / who
        return [ranks.train(base, DEVICE, stock=who == "stock") for _ in range(2)]

    with ThreadPoolExecutor() as pool:
        return dict(zip(["stock", "safecache"], pool.map(run_twice, ["stock", "safecache"]), strict=True))


@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_ranks_agree_and_their_gradients_are_right(runs, who):
    for said in runs[who]:
        ranks.check(said)


def test_second_run_hits_in_both_ranks_what_was_verified(runs):
    _, warm = runs["safecache"]
    ranks.check_hits(warm)
    assert all(rank["stats"]["verified"] > 0 for rank in warm), warm


def test_numbers_are_those_of_stock(runs):
    for ours, theirs in zip(runs["safecache"], runs["stock"], strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine["losses"] == pytest.approx(other["losses"], rel=1e-4)
            assert mine["parameters"] == pytest.approx(other["parameters"], rel=1e-4, abs=1e-4)
