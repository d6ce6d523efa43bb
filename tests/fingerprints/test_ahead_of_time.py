"""What is compiled ahead of time and loaded without being traced: an edit of what it has inlined is noticed.

Stock torch runs what was compiled before, in each of these cases, and returns the old number.
"""

from __future__ import annotations

import pytest
from scenes import omitted_scenes, stale_scenes

pytestmark = pytest.mark.default_release

EDITS = {
    "helper": ("helper", {"edition": 0}, {"edition": 1}, "edited:helper"),
    "plugin": ("helper", {"edition": 0}, {"edition": 0, "plugin": True}, "edited:Layer.forward"),
    "op": ("op", {"edition": 0}, {"edition": 1}, "schema of a custom op, shop.double_into.default"),
    "rank": ("rank", {"rank": 0}, {"rank": 1}, "was '0 of 2' and is '1 of 2' now"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_function_is_refused_once_what_it_has_inlined_is_edited(home, edit):
    name, before, after, said = EDITS[edit]
    save, load = getattr(omitted_scenes, f"save_{name}"), getattr(omitted_scenes, f"load_{name}")
    path = str(home.base / "artifact")
    assert home.run(save, path=path, **before).ok
    same = home.run(load, path=path, **before)
    assert same.ok and not same.warnings and "stale" not in same.stats, same
    edited = home.run(load, path=path, **after)
    assert edited.errors[0] == "RefusedArtifactError" and said in edited.messages[0], edited
    stock = home.run(load, path=path, stock=True, **after)
    assert stock.ok and stock.result[0] != stock.result[1] and stock.result[0] == same.result[0], stock


def test_function_of_a_file_with_another_comment_is_refused(home):
    """Of which lines a function is made, nobody knows: torch has no more than those that it has inlined."""
    path = str(home.base / "artifact")
    assert home.run(omitted_scenes.save_helper, path=path, edition=0).ok
    moved = home.run(omitted_scenes.load_helper, path=path, edition=0, above="# a comment\n\n")
    assert moved.errors[0] == "RefusedArtifactError" and "source file of a module, edited," in moved.messages[0], moved


def test_function_is_refused_once_a_constant_in_a_file_without_an_inlined_function_is_edited(home):
    """With its guards dropped, as vLLM has it."""
    place, path = home.base / "programs", str(home.base / "artifact")
    stale_scenes.write(place, 0)
    assert home.run(stale_scenes.save_ahead, place=str(place), path=path).ok
    same = home.run(stale_scenes.load_ahead, place=str(place), path=path)
    assert same.ok and same.result[0] == same.result[1] and not same.warnings, same
    stale_scenes.write(place, 1)
    edited = home.run(stale_scenes.load_ahead, place=str(place), path=path)
    assert edited.errors[0] == "RefusedArtifactError" and "shop_class_attribute.parts" in edited.messages[0], edited
    stock = home.run(stale_scenes.load_ahead, place=str(place), path=path, stock=True)
    assert stock.ok and stock.result[0] != stock.result[1], stock


@pytest.mark.parametrize("name", ["environment", "environment_at_import"])
def test_function_is_refused_where_the_environment_says_otherwise(home, name):
    place, path = home.base / "programs", str(home.base / "artifact")
    stale_scenes.write(place, 0)
    how = {"place": str(place), "path": path, "name": name}
    assert home.run(stale_scenes.save_ahead, env={"SHOP_N": "1"}, **how).ok
    assert home.run(stale_scenes.load_ahead, env={"SHOP_N": "1"}, **how).ok
    other = home.run(stale_scenes.load_ahead, env={"SHOP_N": "2"}, **how)
    assert other.errors[0] == "RefusedArtifactError" and f"shop_{name}.ops:multiply" in other.messages[0], other


def test_package_of_an_edited_op_is_a_miss(home):
    first = home.run(omitted_scenes.package, edition=0, op=True)
    if not first.ok:  # torch up to 2.14 cannot save a guard on the module of an op: safecache changes nothing in that
        stock = home.run(omitted_scenes.package, edition=0, op=True, stock=True)
        assert (first.errors, first.messages) == (stock.errors, stock.messages), (first, stock)
        return
    again = home.run(omitted_scenes.package, edition=0, op=True)
    assert again.ok and again.result[2] == 1 and "stale" not in again.stats, again
    edited = home.run(omitted_scenes.package, edition=1, op=True)
    assert edited.ok and edited.result[0] == edited.result[1] and edited.stats["stale"] >= 1, edited


def test_package_of_an_edited_helper_is_noticed_by_torch(home):
    """By the guards on the code of functions, in stock torch too."""
    assert home.run(omitted_scenes.package, edition=0).ok
    edited = home.run(omitted_scenes.package, edition=1)
    assert edited.ok and edited.result[0] == edited.result[1] and "stale" not in edited.stats, edited
