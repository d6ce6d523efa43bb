"""Hits that are compiled again in processes of their own, and compared with what was hit."""

from __future__ import annotations

import json

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
    names = {"in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json"}
    assert {each.name for each in kept.iterdir()} == names
    assert "aot hit" not in json.loads(program.run("one").stdout), "it was set aside"


def test_compile_that_takes_too_long_is_ended_and_told(program):
    verified = program.run("one", SAFECACHE_VERIFY="1", SECONDS="0.5")
    stats = json.loads(verified.stdout)
    assert (stats["aot hit"], stats["not compiled again"]) == (1, 1)
    assert "its compile took more than 0.5 s" in verified.stderr
