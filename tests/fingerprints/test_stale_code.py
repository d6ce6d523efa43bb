"""Code and values that a graph was made with, and that no key has: whatever is edited, nothing old is run.

Stock torch runs what was compiled before, or fails, in each of these cases.
"""

from __future__ import annotations

import shutil
from unittest import mock

import pytest
from scenes import stale_scenes
from scenes.stale_scenes import PROGRAMS

pytestmark = pytest.mark.xdist_group("stale code")


def is_right(found):
    return "error" not in found and found["compiled"] == found["eager"]


IN_ONE_FILE = {"environment", "environment_in_lower_case", "environment_by_prefix"}
# Of a comment, which misses for the file that it is in: a miss costs a compile.
COMMENTED = [*sorted(IN_ONE_FILE), *list(PROGRAMS)[::6], list(PROGRAMS)[-1]]
# The edition of the sources, and what stands above them.
STARTS = {
    "cold": (0, {}),
    "comment elsewhere": (0, {"unrelated": "# a comment\n"}),
    "edited": (1, {}),
    "again": (1, {}),
    "comment": (1, {"parts": "# a comment\n"}),
}


def run_some(place, names):
    """A scene: these programs alone."""
    with mock.patch.object(stale_scenes, "PROGRAMS", dict.fromkeys(names)):
        return stale_scenes.run_all(place)


@pytest.fixture(scope="module")
def answers(new_home):
    """What all programs give: cold, warm, and edited; and stock torch's, edited, with the cache of the first start."""
    home, theirs, found = new_home(), new_home(), {}
    place = home.base / "programs"

    def start(home, edition, above, names=tuple(PROGRAMS), **how):
        stale_scenes.write(place, edition, above=above)
        env = dict.fromkeys(("SHOP_N", "shop_level"), str(edition + 1))
        # In two processes, for the time that a scene may take.
        halves = [home.run(run_some, place=str(place), names=names[n::2], env=env, **how) for n in range(2)]
        assert all(answer.ok for answer in halves), halves
        one, other = halves
        one.result |= other.result
        one.stats |= other.stats
        one.warnings += other.warnings
        return one

    for name, (edition, above) in STARTS.items():
        found[name] = start(home, edition, above, COMMENTED if name == "comment" else tuple(PROGRAMS))
        if name == "cold":
            shutil.copytree(home.cache, theirs.cache)
            found["stock"] = start(theirs, 1, {}, stock=True)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_edited_is_compiled_anew_where_stock_runs_the_old_graph(answers, name):
    cold, edited, again, stock = (answers[each].result[name] for each in ("cold", "edited", "again", "stock"))
    assert is_right(cold) and cold["hits"] == 0
    assert is_right(edited) and edited["hits"] == 0, edited
    assert is_right(again) and again["hits"] == 1, answers["again"]
    assert "error" in stock or (not is_right(stock) and stock["hits"] == 1), stock


def test_a_comment_in_a_file_that_they_do_not_consist_of_is_a_hit(answers):
    found = answers["comment elsewhere"]
    assert all(is_right(each) and each["hits"] == 1 for each in found.result.values()), found
    assert not found.warnings and "stale" not in found.stats


def test_a_comment_in_a_file_that_it_consists_of_is_a_miss(answers):
    """Of which lines something is made, nobody knows."""
    found = answers["comment"].result
    assert {*found} == {*COMMENTED} and {name for name in found if found[name]["hits"]} == IN_ONE_FILE, found


def test_a_restart_with_nothing_changed_warns_of_nothing(answers):
    assert not answers["again"].warnings and "stale" not in answers["again"].stats


def test_the_file_that_was_edited_is_named(answers):
    (line, *_) = answers["edited"].warnings
    assert "shop_" in line and "https://github.com/" in line, line


def build_for_both(place):
    """A scene: the library with its number where an edit can find it, for a compile takes longest."""
    source = stale_scenes.IN_CPP.replace("4 * SHOP_N", "4 * number")
    source = source.replace(
        "static at::Tensor", "volatile long number = 0x5afecac4e000 + SHOP_N;\n\nstatic at::Tensor", 1
    )
    with mock.patch.object(stale_scenes, "IN_CPP", source.replace("4 * number", "4 * (number & 15)")):
        stale_scenes.build_library(place, 0)


def test_an_op_in_cpp_is_that_of_its_library(home):
    place = home.base / "library"
    place.mkdir()
    assert home.run(build_for_both, place=str(place)).ok
    first, other = ((0x5AFECAC4E000 + number).to_bytes(8, "little") for number in (1, 2))
    library = place / "libshop.so"
    for edition, hits in ((0, 0), (0, 1), (1, 0), (1, 1)):
        if edition and not hits:
            content = library.read_bytes()
            assert content.count(first) == 1
            library.write_bytes(content.replace(first, other))
        answer = home.run(stale_scenes.run_library, place=str(place))
        assert answer.ok and is_right(answer.result) and answer.result["hits"] == hits, answer
        assert answer.result["compiled"] == 8 * (edition + 1)
        assert ["libshop.so" in line for line in answer.warnings] == [True] * (edition and not hits), answer
