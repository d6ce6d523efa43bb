"""What a user edits, and torch's keys leave out: stock torch runs what was compiled before, and safecache compiles anew.

The numbers come from real processes, cold, warm and edited, each beside stock torch's.
"""

from __future__ import annotations

import shutil

import pytest
from scenes import omitted_scenes
from scenes.omitted_scenes import CASES

# Of a case: what the row of the table is called. Stock torch comes to a wrong number, or an error at each start, as the release may be.
STALE = {
    "mutates_args": "schema of a",
    "schema_default": "schema of a",
    "fake_stride": "fake implementation",
    "fake_dtype": "fake implementation",
    "fake_shape": "fake implementation",
    "autograd_formula": "gradient of",
    "low_level_formula": "gradient of",
    "composite_body": "decomposition",
    "python_lowering": "decomposition",
    "triton_op_body": "decomposition",
    "opaque_callable": "function allowed",
}
IN_KEY = ("inlined_helper", "rank_in_code")


def run(home, name, edition, **how):
    return home.run(omitted_scenes.run, name=name, edition=edition, **how)


def is_right(found):
    """Of an answer too."""
    result = found if isinstance(found, dict) else found.ok and found.result
    return bool(result) and result["compiled"] == pytest.approx(result["eager"], rel=1e-5)


def test_every_case_has_a_verdict():
    assert {*STALE, *IN_KEY} == set(CASES)


# composite_body and triton_op_body come to the same graph of Inductor's.
APART = list(STALE)[:8], list(STALE)[8:]


def run_each(names, edition):
    """A scene: cases in one process, and of one that fails its error."""
    found = {}
    for name in names:
        try:
            found[name] = omitted_scenes.run(name, edition)
        except Exception as error:
            found[name] = {"error": repr(error)}
    return found


@pytest.fixture(scope="module")
def starts(new_home):
    """What the cases give, APART: cold, warm, edited and again, and with stock torch, edited."""
    every = []
    for names in APART:
        home, theirs = new_home(), new_home()
        found = {start: home.run(run_each, names=names, edition=0) for start in ("cold", "warm")}
        shutil.copytree(home.cache, theirs.cache)
        found["stock"] = theirs.run(run_each, names=names, edition=1, stock=True)
        found |= {start: home.run(run_each, names=names, edition=1) for start in ("edited", "again")}
        assert all(answer.ok for answer in found.values()), found
        every.append(found)
    return every


@pytest.mark.xdist_group("edited ops")
@pytest.mark.parametrize("name", STALE)
def test_an_edited_op_is_compiled_anew_where_stock_runs_the_old_graph(starts, name):
    found = {start: answer.result[name] for each in starts for start, answer in each.items() if name in answer.result}
    assert "error" not in found["cold"] and found["warm"]["hits"][0] == 1, found
    assert is_right(found["edited"]) and found["edited"]["hits"] == [0, 0], found
    assert is_right(found["again"]) and found["again"]["hits"][0] == 1, found
    stock = found["stock"]
    assert "error" in stock or (not is_right(stock) and stock["hits"][0] == 1), found


@pytest.mark.xdist_group("edited ops")
@pytest.mark.parametrize("half", range(len(APART)))
def test_each_edit_is_warned_of_once_by_what_was_edited(starts, half):
    found, names = starts[half], APART[half]
    assert not found["warm"].warnings and not found["again"].warnings, found
    edited = found["edited"]
    assert edited.stats["stale"] == edited.stats["quarantined"] >= len(names), edited
    said = [next(row for row in {*STALE.values()} if row in line) for line in edited.warnings]
    assert sorted(said) == sorted(STALE[name] for name in names), edited
    assert all("https://github.com/" in line for line in edited.warnings), edited


@pytest.mark.parametrize("name", IN_KEY)
def test_what_is_in_the_graph_is_in_the_key(home, name):
    assert is_right(run(home, name, 0))
    edited = run(home, name, 1)
    assert is_right(edited) and "stale" not in edited.stats and not edited.warnings, edited


def test_strict_mode_raises_and_the_next_start_is_right(home):
    assert run(home, "mutates_args", 0).ok
    assert "EntryRefusedError" in run(home, "mutates_args", 1, strict=True).errors
    assert is_right(run(home, "mutates_args", 1, strict=True))


def test_an_image_with_a_stale_entry_is_left_as_it_is(home):
    """Each tier is judged in the same place, and what lies in a read-only one stays."""
    assert run(home, "mutates_args", 0).ok
    image = home.cache.rename(home.base / "image")
    home.environment["SAFECACHE_LOWER"] = str(image)
    before = sorted(path.name for path in image.rglob("*"))
    edited = run(home, "mutates_args", 1)
    assert is_right(edited) and edited.stats["stale"] >= 1 and "quarantined" not in edited.stats, edited
    assert sorted(path.name for path in image.rglob("*")) == before
    assert is_right(run(home, "mutates_args", 1))


def test_graphs_in_a_bundle_state_their_ops_too(home):
    env = {"TORCHINDUCTOR_BUNDLED_AUTOGRAD_CACHE": "1"}
    assert run(home, "autograd_formula", 0, env=env).ok
    assert is_right(run(home, "autograd_formula", 1, env=env))


def test_entries_from_before_are_refused_once_where_custom_ops_are(home):
    """That an entry states nothing proves nothing: its graph has an op of which nobody knows what it was."""
    assert home.run(omitted_scenes.run_silently, name="mutates_args").ok
    first = run(home, "mutates_args", 0)
    assert first.ok and first.stats["stale"] == first.stats["quarantined"] >= 1, first
    assert len(first.warnings) == 1 and "does not say" in first.warnings[0], first
    again = run(home, "mutates_args", 0)
    assert again.ok and again.result["hits"][0] == 1 and not again.warnings, again


def test_entries_from_before_are_used_where_no_custom_op_is(home):
    assert home.run(omitted_scenes.run_silently, name="inlined_helper").ok
    answer = run(home, "inlined_helper", 0)
    assert answer.ok and answer.result["hits"] == [1, 1] and not answer.warnings, answer


@pytest.mark.parametrize("first", [omitted_scenes.run, omitted_scenes.run_unseen], ids=["seen first", "unseen first"])
def test_an_op_that_was_registered_before_safecache_was_imported_is_a_miss(home, first):
    """The dispatcher does not give back what it was given, in one of two processes."""
    second = {omitted_scenes.run: omitted_scenes.run_unseen}.get(first, omitted_scenes.run)
    assert home.run(first, name="low_level_formula", edition=0).ok
    answer = home.run(second, name="low_level_formula", edition=0)
    assert is_right(answer) and answer.result["hits"][0] == 0 and len(answer.warnings) == 1, answer
    assert "SAFECACHE_ASSUME_UNCHANGED=shop.low_level.default" in answer.warnings[0], answer


def test_an_op_of_torchs_that_was_changed_before_safecache_was_imported_is_a_miss(home):
    for accepted, hits in (("", 0), ("", 0), ("aten.hardsigmoid.default", 1)):
        home.environment["SAFECACHE_ASSUME_UNCHANGED"] = accepted
        answer = home.run(omitted_scenes.run_unseen_of_torch)
        assert answer.ok and answer.result == {"compiled": 12.0, "hits": hits}, answer
    assert not answer.warnings


def test_an_op_of_torchs_for_which_a_mode_has_a_rule_is_compared(home):
    before, after = home.run(omitted_scenes.state_of_an_op_with_a_rule).result
    assert before == [[], None] and after == [["aten.hardsigmoid.default"], True]


def test_an_op_that_a_user_assumes_unchanged_is_used(home):
    home.environment["SAFECACHE_ASSUME_UNCHANGED"] = "shop.low_level.default"
    assert home.run(omitted_scenes.run_unseen, name="low_level_formula", edition=0).ok
    answer = home.run(omitted_scenes.run_unseen, name="low_level_formula", edition=0)
    assert is_right(answer) and answer.result["hits"][0] == 1 and not answer.warnings, answer


def test_what_can_be_seen_of_an_op_that_was_registered_before_safecache_was_imported_is_compared(home):
    home.environment["SAFECACHE_ASSUME_UNCHANGED"] = "shop.lowered.default"
    assert home.run(omitted_scenes.run_unseen, name="python_lowering", edition=0).ok
    edited = home.run(omitted_scenes.run_unseen, name="python_lowering", edition=1)
    assert is_right(edited) and "decomposition" in edited.warnings[0], edited


def test_op_of_which_there_is_nothing_to_see_is_compared_whole(home):
    """As one of a library in C++: that a gradient is new in Python is a difference then."""
    before, after = home.run(omitted_scenes.state_of_unseen).result
    assert "unseen" not in before and after["unseen"] == "yes" and before["schema"] == after["schema"]


def test_op_that_a_server_has_registered_unseen_is_covered_by_the_servers_row(home, tmp_path):
    stated, modules = home.run(omitted_scenes.state_of_unseen_of_server, place=str(tmp_path)).result
    assert "unseen" not in stated and modules == ["sgl_kernel"]


@pytest.mark.default_release
def test_configurations_that_are_tried_are_part_of_an_op(home):
    answer = home.run(omitted_scenes.states_of_tuned)
    assert answer.ok and len({*answer.result}) == 3, answer


def test_triton_kernels_have_their_constants_and_helpers_in_the_key(home):
    pytest.importorskip("triton")
    keys = [home.run(omitted_scenes.key_of_kernel, edition=edition).result for edition in (0, 0, 1, 2)]
    assert keys[0] == keys[1] and len({*keys}) == 3, keys
