"""The training of the GPU's scenario, on the CPU: the second run hits in both ranks, and the numbers are right."""

from __future__ import annotations

import pytest

from . import ranks

pytestmark = [pytest.mark.default_release, pytest.mark.timeout(900)]


def test_second_run_hits_in_both_ranks_with_the_same_numbers(tmp_path):
    cold, warm = (ranks.train(tmp_path / "ours", "cpu") for _ in range(2))
    ranks.check(cold)
    ranks.check(warm)
    ranks.check_hits(warm)
    assert all(rank["stats"]["verified"] > 0 for rank in warm), warm
    assert [rank["losses"] for rank in warm] == [pytest.approx(rank["losses"], rel=1e-6) for rank in cold]
