"""Who compiled, who waited for it and what that saved: out of files that anybody may have written."""

from __future__ import annotations

import json

import pytest

from safecache.cli import stats
from safecache.history import run_summary

KEY, OTHER = "f" + "b" * 51, "f" + "c" * 51


@pytest.fixture
def write(tmp_path):
    """Writes a journal of these lines, and returns its cache."""
    folder = tmp_path / "cache" / ".safecache/journal"
    folder.mkdir(parents=True)

    def write(*lines):
        (folder / "20260101T000000-1-a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return tmp_path / "cache"

    return write


def line(time, pid, **rest):
    return {"time": float(time), "run": "r", "pid": pid, "host": "h", "rank": "", "key": KEY, "counts": {}} | rest


def miss(time, pid, **rest):
    return line(time, pid, **({"layer": "fx", "name": "model", "outcome": "miss", "reason": "never seen"} | rest))


def wait(time, pid, waited, took, **rest):
    return line(time, pid, waited=waited, took=took, **rest)


EIGHT = [miss(1, 100), *(wait(7, pid, 4.0, 5.0) for pid in range(101, 108))]


def test_command_says_who_compiled_who_waited_and_what_it_saved(write, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    root = write(*EIGHT)
    said = json.loads(run("stats", root, "--json").out)["single_flight"]
    (compiled,) = said.pop("compiles")
    assert said == {"left_to_others": 7, "waited_in_vain": 0}
    assert (compiled["layer"], compiled["name"], compiled["pid"], compiled["host"]) == ("fx", "model", 100, "h")
    assert (compiled["processes"], compiled["waited"], compiled["took"], compiled["saved"]) == (7, 28.0, 5.0, 7.0)
    text = run("stats", root).out
    assert "7 compiles left to other processes" in text and "in place of 35.0 s of compiling" in text
    assert [row for row in text.splitlines() if "process 100 on h" in row and "28.0 s" in row], text


def test_explanation_of_a_key_names_its_compiler(write, run):
    root = write(*EIGHT, miss(8, 108, key=OTHER, name="other"))
    done = run("explain", KEY[:12], "--dir", root)
    waited = "for which 7 processes waited 28.0 s in place of 35.0 s of compiling"
    assert f"compiled by process 100 on h in 5.0 s, {waited}" in done.out
    assert "compiled by" not in run("explain", OTHER, "--dir", root).out
    (row,) = json.loads(run("explain", OTHER, "--dir", root, "--json").out)["misses"]
    assert (row["pid"], row["host"], row["shared"]) == (108, "h", None)


def test_page_has_a_row_for_each_compile(write, run, tmp_path, monkeypatch):
    monkeypatch.setattr(stats, "examine_machine", lambda import_torch: [])
    root = write(*EIGHT, wait(9, 101, 1.0, 2.0, key="<b>nobody's</b>"))
    assert run("report", root, "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "process 100 on h" in page and "another host" in page and "28.0 s" in page
    assert "&lt;b&gt;nobody" in page and "<b>nobody" not in page


def found(root, run=run_summary.ALL):
    return list(run_summary.find_shared(run_summary.read_unverified(str(root)), run).values())


def test_wait_is_for_whoever_missed_last_before_its_end(write):
    """As where the first was killed, and another took over; and once more after the entry was removed."""
    root = write(miss(1, 100), miss(3, 101), wait(5, 102, 3.0, 2.0), miss(9, 103), wait(10, 104, 0.5, 1.0))
    assert {each.pid: each.processes for each in found(root)} == {101: 1, 103: 1}


def test_run_is_that_of_the_wait(write):
    root = write(miss(1, 100, run="first"), wait(5, 102, 3.0, 2.0), wait(6, 103, 1.0, 2.0, run="other"))
    (compile,) = found(root, "r")
    assert (compile.pid, compile.processes, compile.waited) == (100, 1, 3.0)


@pytest.mark.parametrize("bad", [None, "1", True, 1, -1.0, float("nan"), float("inf"), 1e300, [], {}])
@pytest.mark.parametrize("field", ["waited", "took"])
def test_time_that_is_none_is_no_line(write, bad, field):
    root = write(miss(1, 100), wait(5, 101, 3.0, 2.0) | {field: bad}, wait(5, 102, 3.0, 2.0))
    assert found(root)[0].processes == 1
