"""Collectives that Inductor merges have the rank in their code, and not in their key: pytorch issue 188332."""

from __future__ import annotations

import pytest
from scenes import omitted_scenes

pytestmark = pytest.mark.default_release


def gather(home, rank, **how):
    answer = home.run(omitted_scenes.gather, rank=rank, **how)
    assert answer.ok and not answer.warnings and "quarantined" not in answer.stats, answer
    return answer.result["aot"], answer.result["fx"]


def test_each_rank_has_entries_of_its_own_under_one_key(home, new_home):
    assert gather(home, 0) == (0, 0)
    other = home.run(omitted_scenes.gather, rank=1)
    assert other.ok and not other.warnings and other.stats["other rank"] == 2 and other.stats["saved"] == 2, other
    assert [gather(home, rank) for rank in (0, 1)] == [(1, 1), (1, 1)]
    assert gather(home, 0, size=4) == (0, 0), "another number of ranks"
    theirs = new_home()
    assert [gather(theirs, rank, stock=True) for rank in (0, 1)] == [(0, 0), (1, 1)]


def test_ranks_share_what_has_no_rank_in_it(home):
    assert [gather(home, rank, bucketing="none") for rank in (0, 1, 0)] == [(0, 0), (1, 1), (1, 1)]
