"""Hits that are hidden from torch, which compiles them where it stands, and compared with what it saves."""

from __future__ import annotations

import json
import shutil
import textwrap

import pytest

from recompile_check.programs import Program

pytestmark = [pytest.mark.default_release, pytest.mark.xdist_group("recompile check")]

ALL = {"SAFECACHE_RECOMPILE_SAMPLE": "1"}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    program = Program(tmp_path_factory.mktemp("template"))
    first = program.run("one")
    assert first.returncode == 0, first.stderr
    return program


@pytest.fixture
def program(template, tmp_path):
    shutil.copytree(template.directory, tmp_path, dirs_exist_ok=True, symlinks=True)
    return Program(tmp_path)


def entries(program):
    return {
        path: path.read_bytes()
        for folder in ("aotautograd", "fxgraph")
        for path in program.cache.glob(f"{folder}/*/*/*")
    }


def test_honest_hit_is_compiled_alike_and_not_saved_again(program):
    before = entries(program)
    checked = program.run("one", **ALL)
    stats = json.loads(checked.stdout)
    assert (stats["aot miss: sampled"], stats["fx miss: sampled"], stats["compiled alike again"]) == (1, 1, 2)
    assert {"aot hit", "saved", "compiled otherwise now", "not compiled again"}.isdisjoint(stats), checked.stderr
    assert entries(program) == before and "safecache:" not in checked.stderr


def test_training_and_dynamic_shapes_are_compiled_alike(program):
    assert program.run().returncode == 0
    before = entries(program)
    checked = program.run(**ALL)
    stats = json.loads(checked.stdout)
    assert stats["compiled alike again"] == 7 and "safecache:" not in checked.stderr, checked.stderr
    assert (stats["aot miss: sampled"], stats["fx miss: sampled"]) == (3, 4) and entries(program) == before


def test_stale_hit_is_not_used_and_replaced_with_evidence(program):
    program.write(number=2)
    assert json.loads(program.run("one").stdout)["value"] == 6, "the key leaves out what the operator does"
    checked = program.run("one", **ALL)
    stats = json.loads(checked.stdout)
    assert (stats["value"], stats["compiled otherwise now"], stats["quarantined"]) == (9, 1, 1), checked.stderr
    assert "+++ compiled now" in checked.stderr
    assert checked.stderr.count("[compiled otherwise now]") == 1
    [kept] = (program.cache / ".safecache" / "differences").iterdir()
    names = {"in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json", "record"}
    assert {each.name for each in kept.iterdir()} == names
    stats = json.loads(program.run("one").stdout)
    assert (stats["aot hit"], stats["value"]) == (1, 9)


def test_nothing_is_compiled_again_where_all_must_hit(program):
    stats = json.loads(program.run("one", SAFECACHE_MUST_HIT="1", **ALL).stdout)
    assert (stats["aot hit"], stats["value"]) == (1, 6) and "compiled alike again" not in stats


def test_key_is_compiled_again_once_in_a_process(program):
    stats = json.loads(program.run("one", "twice", **ALL).stdout)
    assert (stats["aot miss: sampled"], stats["aot hit"], stats["compiled alike again"]) == (1, 1, 2)


def test_old_name_of_the_setting_means_the_same(program):
    assert json.loads(program.run("one", SAFECACHE_VERIFY="1").stdout)["compiled alike again"] == 2


def test_entry_from_a_lower_tier_is_compared_and_stays(program, tmp_path):
    program.write(number=2)
    settings = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own"), "SAFECACHE_LOWER": str(program.cache)}
    before = entries(program)
    checked = program.run("one", **ALL, **settings)
    assert json.loads(checked.stdout)["value"] == 9, checked.stderr
    assert "It lies in a lower tier, and stays." in checked.stderr and entries(program) == before


CHILDREN = """
    import json, multiprocessing, runpy, sys

    def work():
        sys.argv = ["program.py", "one"]
        runpy.run_path("program.py", run_name="child")

    if __name__ == "__main__":
        work()
        for how in ("fork", "spawn"):
            child = multiprocessing.get_context(how).Process(target=work)
            child.start()
            child.join()
            assert child.exitcode == 0
    """


def test_children_compile_what_they_hit_again(program):
    """One that is forked has the counters, and what is loaded, of its parent, whose thread is gone."""
    (program.directory / "children.py").write_text(textwrap.dedent(CHILDREN))
    done = program.run_file("children.py", **ALL)
    assert done.returncode == 0, done.stderr
    parent, forked, spawned = map(json.loads, done.stdout.splitlines())
    assert "compiled alike again" not in parent, "what it has compiled is new"
    assert (forked["compiled alike again"], spawned["compiled alike again"]) == (2, 2), done.stderr
    assert not any("compiled otherwise now" in each for each in (parent, forked, spawned))


# What is cached of one graph is sealed again, with the user's own key, for another.
SWAP = """
    import os, sys
    from safecache.reporting.kinds import Kind
    from safecache.signing import keyring, seal

    wrong, right = (open(path, "rb").read() for path in sys.argv[1:])
    key = os.path.basename(os.path.dirname(sys.argv[2]))
    payload, facts = seal.payload_of(wrong), seal.stated_provenance(right)
    with open(sys.argv[2], "wb") as file:
        file.write(seal.attach(payload, Kind.AOT_ENTRY, key, keyring.current().signing, facts))
    """


def test_what_was_sealed_for_another_graph_is_found_out(program):
    [wrong] = program.cache.glob("aotautograd/*/*")
    source = program.directory / "program.py"
    source.write_text(source.read_text().replace("(x) * 3", "(x) * 4"))
    assert program.run("one").returncode == 0
    [right] = set(program.cache.glob("aotautograd/*/*")) - {wrong}
    (program.directory / "swap.py").write_text(textwrap.dedent(SWAP))
    swapped = program.run_file("swap.py", str(wrong), str(right))
    assert swapped.returncode == 0, swapped.stderr

    assert json.loads(program.run("one").stdout)["value"] == 6, "of another graph"
    checked = program.run("one", SAFECACHE_STRICT="1", **ALL)
    stats = json.loads(checked.stdout)
    assert (stats["value"], stats["compiled otherwise now"], stats["quarantined"]) == (8, 1, 1), checked.stderr
    assert "1 entries are compiled otherwise now" in checked.stderr.splitlines()[-1]
    stats = json.loads(program.run("one", **ALL).stdout)
    assert stats["compiled alike again"] == 2 and "compiled otherwise now" not in stats
