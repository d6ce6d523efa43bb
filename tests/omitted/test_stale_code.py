"""Code and values that a graph was made with, and that no key has: whatever is edited, nothing old is run.

Stock torch runs what was compiled before, or fails, in each of these cases.
"""

from __future__ import annotations

import pytest
from scenes import stale_scenes
from scenes.stale_scenes import PROGRAMS

pytestmark = pytest.mark.xdist_group("stale code")


def is_right(found):
    return "error" not in found and found["compiled"] == found["eager"]


STARTS = {"cold": 0, "warm": 0, "comment elsewhere": 0, "edited": 1, "again": 1, "comment": 1}
OF_STOCK = {"cold": 0, "warm": 0, "edited": 1}
IN_ONE_FILE = {"environment", "environment_in_lower_case", "environment_by_prefix"}
ABOVE = {"comment elsewhere": {"unrelated": "# a comment\n"}, "comment": {"parts": "# a comment\n"}}


@pytest.fixture(scope="module")
def answers(new_home):
    """What all programs give: cold, warm, and edited; and stock torch's, edited."""
    found = {}
    for name, how in {"ours": {}, "stock": {"stock": True}}.items():
        home = new_home()
        place = home.base / "programs"
        for start, edition in (STARTS if name == "ours" else OF_STOCK).items():
            stale_scenes.write(place, edition, above=ABOVE.get(start, {}))
            env = dict.fromkeys(("SHOP_N", "shop_level"), str(edition + 1))
            answer = home.run(stale_scenes.run_all, place=str(place), env=env, **how)
            assert answer.ok, answer
            found[name, start] = answer
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_edited_is_compiled_anew_where_stock_runs_the_old_graph(answers, name):
    cold, warm, edited, again = (answers["ours", each].result[name] for each in ("cold", "warm", "edited", "again"))
    assert is_right(cold) and cold["hits"] == 0
    assert is_right(warm) and warm["hits"] == 1, answers["ours", "warm"]
    assert is_right(edited) and edited["hits"] == 0, edited
    assert is_right(again) and again["hits"] == 1, answers["ours", "again"]
    assert is_right(answers["stock", "warm"].result[name])
    assert not is_right(answers["stock", "edited"].result[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_comment_in_a_file_that_it_does_not_consist_of_is_a_hit(answers, name):
    assert answers["ours", "comment elsewhere"].result[name]["hits"] == 1
    assert not answers["ours", "comment elsewhere"].warnings


def test_a_comment_in_a_file_that_it_consists_of_is_a_miss(answers):
    """Of which lines something is made, nobody knows."""
    found = answers["ours", "comment"].result
    assert {name for name in PROGRAMS if found[name]["hits"]} == IN_ONE_FILE, found


def test_a_restart_with_nothing_changed_warns_of_nothing(answers):
    assert not answers["ours", "warm"].warnings and not answers["ours", "again"].warnings
    assert "stale" not in answers["ours", "warm"].stats


def test_the_file_that_was_edited_is_named(answers):
    (line, *_) = answers["ours", "edited"].warnings
    assert "shop_" in line and "https://github.com/" in line, line


def test_an_op_in_cpp_is_that_of_its_library(home):
    place = home.base / "library"
    place.mkdir()
    for edition, hits in ((0, 0), (0, 1), (1, 0), (1, 1)):
        if not hits:
            assert home.run(stale_scenes.build_library, place=str(place), edition=edition).ok
        answer = home.run(stale_scenes.run_library, place=str(place))
        assert answer.ok and is_right(answer.result) and answer.result["hits"] == hits, answer
        assert ["libshop.so" in line for line in answer.warnings] == [True] * (edition and not hits), answer
