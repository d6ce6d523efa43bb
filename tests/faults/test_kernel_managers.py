"""Managers of Triton's cache that users set go on working, and take nothing that was planted.

Triton's own hook, ``knobs.cache.manager_class``, cannot stand for the methods that we patch: what it leaves open is
shown here, with a manager that takes nothing at all.
"""

from __future__ import annotations

import pytest
from scenes import kernel_scenes, manager_scenes, triton_cache_scenes

from faults.hostile import triton_files as files
from safecache.patching.activation import list_hooks

pytest.importorskip("triton")

MANAGERS = pytest.mark.parametrize("manager", ["OwnDirectory", "OwnWriter", "OwnBoth", "Telling"])
SCENE = manager_scenes.compile_with_manager


@pytest.fixture
def home(home):
    home.environment["TRITON_CACHE_DIR"] = str(home.base / "triton")
    return home


@MANAGERS
@pytest.mark.parametrize("what", [kernel_scenes.compile_kernel, kernel_scenes.build_module])
def test_manager_of_a_user_finds_what_it_has_kept_and_nothing_else(home, manager, what):
    planted = home.run(SCENE, manager=manager, what=what, stock=True)
    assert planted.ok and planted.result["compiled"], planted
    cold = home.run(SCENE, manager=manager, what=what)
    assert cold.ok and cold.result["compiled"] and "unsealed" in cold.stats and len(cold.warnings) == 1, cold
    for stock in (False, True):
        warm = home.run(SCENE, manager=manager, what=what, stock=stock)
        assert warm.ok and not warm.result["compiled"] and not warm.warnings, warm


@MANAGERS
def test_file_of_a_user_s_manager_that_is_damaged_is_made_anew(home, manager):
    good = home.run(SCENE, manager=manager)
    assert good.ok and not good.warnings, good
    files(home, "*.cubin")[0].write_bytes(b"evil")
    answer = home.run(SCENE, manager=manager)
    assert answer.ok and answer.result["compiled"] and answer.result["cubin"] == good.result["cubin"], answer
    assert answer.stats["damaged"] == 1 and not home.run(SCENE, manager=manager).result["compiled"]


@MANAGERS
@pytest.mark.parametrize("who", ["stock", "safecache"])
def test_kernel_of_a_user_s_manager_that_is_exchanged_at_once_is_not_taken(home, manager, who):
    (home.base / "triton").mkdir()
    (home.base / "triton").chmod(0o777)
    evil = b"evil".hex()
    scene = manager_scenes.compile_with_manager_under_attack
    answer = home.run(scene, manager=manager, evil={".cubin": evil}, stock=who == "stock")
    assert answer.ok and (answer.result["cubin"] == evil) is (who == "stock"), answer


@MANAGERS
def test_manager_of_a_user_keeps_what_was_compiled_in_isolation(home, manager):
    cold = home.run(SCENE, manager=manager, env={"SAFECACHE_ISOLATE": "1"})
    assert cold.ok and cold.stats.get("compiled in isolation") == 1 and not cold.warnings, cold
    warm = home.run(SCENE, manager=manager)
    assert warm.ok and not warm.result["compiled"] and not warm.warnings, warm


@MANAGERS
def test_manager_of_a_user_leaves_the_directories_of_people_alone(home, manager):
    dump = home.base / "dump"
    dumped = home.run(SCENE, manager=manager, env={"TRITON_KERNEL_DUMP": "1", "TRITON_DUMP_DIR": str(dump)})
    assert dumped.ok and not (dump / ".safecache").exists(), dumped
    (text,) = dump.glob("*/*.ptx")
    text.write_text("// overridden\n" + text.read_text())
    env = {"TRITON_KERNEL_OVERRIDE": "1", "TRITON_OVERRIDE_DIR": str(dump), "TRITON_ALWAYS_COMPILE": "1"}
    answer = home.run(
        triton_cache_scenes.text_of,
        extension="ptx",
        env=env | {"TRITON_CACHE_MANAGER": f"scenes.triton_managers:{manager}"},
    )
    assert answer.ok and answer.result.startswith("// overridden") and not answer.warnings, answer


HOLES = ["made directly", "a user's", "none", "reset", "end of a scope"]


@pytest.mark.parametrize("who", ["stock", "safecache"])
@pytest.mark.parametrize("how", ["as it is", *HOLES])
def test_planted_file_is_found_in_spite_of_triton_s_hook_but_not_of_ours(home, how, who):
    answer = home.run(manager_scenes.found_where_the_hook_is_set, how=how, stock=who == "stock")
    assert answer.ok and answer.result["found"] is (who == "stock" and how in HOLES), answer


def test_triton_s_hook_once_assigned_takes_the_place_of_a_user_s_manager(home):
    assert home.run(manager_scenes.manager_that_the_environment_names).result == "Refusing"


def test_hooks_that_the_table_says_upstream_has_are_there(home):
    named = sorted({hook.instead.partition(":")[0] for _, hook in list_hooks() if hook.instead})
    assert len(named) == 4 and home.run(manager_scenes.upstream_hooks, names=named).result == dict.fromkeys(named)
