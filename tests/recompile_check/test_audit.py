"""`audit --recompile` runs the program with an empty cache, and compares what it compiles then with what is cached."""

from __future__ import annotations

import json

import pytest

from recompile_check.programs import Program

pytestmark = pytest.mark.default_release


def test_honest_cache_is_alike_and_a_stale_key_is_told_with_the_code_that_differs(tmp_path):
    program = Program(tmp_path)
    first = program.run()
    assert first.returncode == 0, first.stderr
    # Comments of the program are no part of what it compiles.
    source = tmp_path / "program.py"
    source.write_text("# Another line.\n" + source.read_text())

    honest = program.audit("--json")
    assert honest.returncode == 0, honest.stdout + honest.stderr
    report = json.loads(honest.stdout.splitlines()[-1])
    assert (report["differing"], report["uncompared"], report["alike"]) == ([], [], 7)
    assert not (program.cache / ".safecache" / "differences").exists()

    program.write(number=2)
    hit = program.run()
    assert json.loads(hit.stdout)["aot hit"] == 3, "the key leaves out what the operator does"
    stale = program.audit("--json")
    assert stale.returncode == 1
    report = json.loads(stale.stdout.splitlines()[-1])
    assert {"aotautograd"} == {each["path"].split("/inductor/")[1].split("/")[0] for each in report["differing"]}
    assert len(report["differing"]) == 2
    for each in report["differing"]:
        assert "+++ compiled now" in each["differences"]["source_code"]
        with open(f"{each['kept']}/difference.txt") as file:
            assert "+++ compiled now" in file.read()
    # The forward graphs have other keys now: they are named, and not compared.
    assert {why for _, why in report["uncompared"]} == {"the program has not compiled it", "it is not in the cache"}


def test_program_that_fails_is_told(tmp_path):
    program = Program(tmp_path)
    assert program.run().returncode == 0
    (tmp_path / "program.py").write_text("raise SystemExit(3)")
    said = program.audit()
    assert said.returncode == 1
    assert "ended with status 3" in said.stdout
