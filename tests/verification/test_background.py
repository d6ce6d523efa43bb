"""Hits that are compiled again in processes of their own, and compared with what was hit."""

from __future__ import annotations

import json
import textwrap

import pytest

from verification.programs import Program

pytestmark = pytest.mark.default_release


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    first = program.run("one")
    assert first.returncode == 0, first.stderr
    return program


def test_honest_hit_is_compiled_alike(program):
    verified = program.run("one", SAFECACHE_VERIFY="1")
    stats = json.loads(verified.stdout)
    assert (stats["aot hit"], stats["compiled alike again"]) == (1, 2), verified.stderr
    assert {"compiled otherwise now", "not compiled again", "aot miss: key differs"}.isdisjoint(stats)


def test_stale_hit_is_told_kept_as_evidence_and_set_aside(program):
    program.write(number=2)
    verified = program.run("one", SAFECACHE_VERIFY="1")
    stats = json.loads(verified.stdout)
    assert (stats["aot hit"], stats["compiled otherwise now"], stats["quarantined"]) == (1, 1, 1), verified.stderr
    assert "+++ compiled now" in verified.stderr
    assert verified.stderr.count("[compiled otherwise now]") == 1
    [kept] = (program.cache / ".safecache" / "differences").iterdir()
    names = {"in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json", "record"}
    assert {each.name for each in kept.iterdir()} == names
    assert "aot hit" not in json.loads(program.run("one").stdout), "it was set aside"


def test_compile_that_takes_too_long_is_ended_and_told(program):
    verified = program.run("one", SAFECACHE_VERIFY="1", SECONDS="0.5")
    stats = json.loads(verified.stdout)
    assert (stats["aot hit"], stats["not compiled again"]) == (1, 1)
    assert "its compile took more than 0.5 s" in verified.stderr


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


def test_children_verify_what_they_hit(program):
    """One that is forked has the counters, and what is loaded, of its parent, whose thread is gone."""
    (program.directory / "children.py").write_text(textwrap.dedent(CHILDREN))
    done = program.run_file("children.py", SAFECACHE_VERIFY="1")
    assert done.returncode == 0, done.stderr
    parent, forked, spawned = map(json.loads, done.stdout.splitlines())
    assert forked["compiled alike again"] - parent.get("compiled alike again", 0) == 2, done.stderr
    assert (forked["aot hit"] - parent.get("aot hit", 0), spawned["aot hit"]) == (1, 1)
    # What has spawned it may come to another key than what compiles for it: then it says so.
    assert (spawned.get("compiled alike again"), spawned.get("not compiled again")) in [(2, None), (None, 1)]
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

    verified = program.run("one", SAFECACHE_VERIFY="1", SAFECACHE_STRICT="1")
    stats = json.loads(verified.stdout)
    assert (stats["aot hit"], stats["compiled otherwise now"], stats["quarantined"]) == (1, 1, 1), verified.stderr
    assert "1 entries that were used are compiled otherwise now" in verified.stderr.splitlines()[-1]
    stats = json.loads(program.run("one", SAFECACHE_VERIFY="1").stdout)
    assert {"aot hit", "compiled otherwise now"}.isdisjoint(stats), "it was set aside"
