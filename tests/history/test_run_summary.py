"""``safecache stats``: the sums over the processes of a run, out of files that anybody may have written."""

from __future__ import annotations

import json
import os

import pytest

from safecache.cli import stats
from safecache.history import run_summary


@pytest.fixture
def write(tmp_path):
    """Writes a journal of these lines; each is of the run ``a`` unless it says otherwise."""
    folder = tmp_path / "cache" / ".safecache/journal"
    folder.mkdir(parents=True)

    def write(*lines, name="1"):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (folder / f"20260101T000000-{name}-a.jsonl").write_text("\n".join(texts))
        return tmp_path / "cache"

    return write


def line(time=1.0, run="a", pid=1, counts=None, **rest):
    return {"time": float(time), "run": run, "pid": pid, "host": "h", "rank": "", "counts": counts or {}} | rest


def miss(layer="fx", reason="never seen", **rest):
    values = {
        "layer": layer,
        "outcome": "miss",
        "reason": reason,
        "key": "k",
        "name": "model",
        "detail": "",
        "frame": "",
    }
    return line(**(values | rest))


def test_sums_are_over_all_processes_of_the_run(write, run):
    write(miss(time=1, pid=1), line(time=2, pid=1, counts={"fx hit": 2, "aot hit": 1}), name="1")
    root = write(miss(time=3, pid=2, reason="damaged", counts={"fx hit": 1}), name="2")
    done = run("stats", root, "--json")
    said = json.loads(done.out)
    assert done.code == 0 and (said["run"], said["processes"]) == ("a", 2)
    assert said["layers"] == {
        "aot": {"lookups": 1, "hit": 1, "miss": 0, "bypass": 0, "reasons": {}},
        "fx": {"lookups": 5, "hit": 3, "miss": 2, "bypass": 0, "reasons": {"miss: damaged": 1, "miss: never seen": 1}},
        "triton": {"lookups": 0, "hit": 0, "miss": 0, "bypass": 0, "reasons": {}},
        "model": {"lookups": 0, "hit": 0, "miss": 0, "bypass": 0, "reasons": {}},
    }
    assert [row["name"] for row in said["missed"]] == ["model", "model"]


def test_last_line_is_the_effect(write, run):
    """A lookup that only found nothing has refused nothing."""
    root = write(
        miss(time=1, reason="damaged"),
        miss(time=2, reason="unsealed", counts={"fx hit": 3, "aot hit": 1, "aot ms saved": 1500, "fx ms saved": 1200}),
        miss(time=3, reason="sampled"),
        miss(time=4),
    )
    assert json.loads(run("stats", root, "--json").out)["effect"] == {
        "hits": 4,
        "would_be_refused": 0,
        "refused": 2,
        "seconds_spared": 1.5,
    }
    said = run("stats", root).out.splitlines()[-1]
    assert said == "effect: 4 hits verified, 2 lookups refused what was there, 1.5 s of compiling spared"


def test_other_runs_are_named(write, run):
    root = write(miss(time=1, run="first"), miss(time=2, run="second"), miss(time=3, run="third"))
    assert json.loads(run("stats", root, "--json").out)["other_runs"] == ["first", "second"]
    assert "other runs recorded here: 2, among them first, second." in run("stats", root).out
    assert "other runs" not in run("stats", root, "--run", "all").out


def test_hits_that_were_compiled_again_are_told_where_there_are_some(write, run, tmp_path, monkeypatch):
    monkeypatch.setattr(stats, "examine_machine", lambda import_torch: [])
    root = write(line(time=1, run="none"), line(time=2, pid=1, counts={"recompile matches": 3}), name="1")
    write(line(time=3, pid=2, counts={"recompile differs": 1, "recompile matches": 2}), name="2")
    said = json.loads(run("stats", root, "--json").out)
    assert said["recompile_check"] == {"recompiled": 5, "differs": 1, "not_recompiled": 0}
    text = "5 recompile matches, 1 recompile differs, 0 not recompiled"
    assert f"recompile check: {text}\n" in run("stats", root).out
    assert run("report", root, "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert all(part in page for part in text.split(", ")) and "safecache help errors#recompile-differs" in page
    assert "recompile check" not in run("stats", root, "--run", "none").out


def test_times_are_told_of_each_process(write, run):
    """Those of AOTAutograd entries include their graphs'."""
    times = {"aot ms spent": 3000, "fx ms spent": 2500, "code ms waited": 1000}
    root = write(line(pid=1, counts={"aot ms in hits": 2000, "aot hit": 2}), line(pid=2, counts=times), miss(pid=2))
    slow, quick = json.loads(run("stats", root, "--json").out)["by_process"]
    assert slow == {
        "host": "h",
        "pid": 2,
        "rank": "",
        "compiled": 3,
        "waited": 1,
        "in_hits": 0,
        "hits": 0,
        "lookups": 1,
    }
    assert quick == {
        "host": "h",
        "pid": 1,
        "rank": "",
        "compiled": 0,
        "waited": 0,
        "in_hits": 2,
        "hits": 2,
        "lookups": 2,
    }
    said = run("stats", root).out
    assert f" {'c' * 15 + 'w' * 5}\n" in said and f" {'h' * 10}\n" in said, "to one scale"


def test_run_without_times_has_no_bars(write, run):
    assert " c w h\n" not in run("stats", write(miss())).out


@pytest.mark.parametrize(
    ("which", "expected"), [("last", 1), ("old", 2), ("all", 3), ("none-such", None)], ids=lambda value: str(value)
)
def test_run_is_the_latest_a_given_one_or_all(write, run, which, expected):
    root = write(line(time=9, run="new", counts={"fx hit": 1}), line(time=1, run="old", counts={"fx hit": 2}))
    done = run("stats", root, "--run", which, "--json")
    assert done.code == int(expected is None)
    if expected is None:
        assert "none-such" in done.err and str(root) in done.err
    else:
        assert json.loads(done.out)["layers"]["fx"]["hit"] == expected


def test_directory_without_a_journal_is_said(tmp_path, run):
    done = run("stats", tmp_path)
    assert done.code == 1 and str(tmp_path) in done.err and not done.out


BAD = {
    "torn": json.dumps(miss())[:-5],
    "no object": "[1]",
    "deep": "[" * 100_000,
    "time": line() | {"time": "now"},
    "endless time": json.dumps(line()).replace("1.0", "Infinity"),
    "no time": '{"pid": 1, "counts": {}}',
    "pid": line(pid="1"),
    "counts": line() | {"counts": [1]},
    "unknown count": line(counts={"fx hit: perhaps": 1}),
    "negative count": line(counts={"fx hit": -1}),
    "name": miss(name=["model"]),
    "outcome": miss(outcome="perhaps"),
    "list for an outcome": miss(outcome=[]),
    "reason": miss(reason="no such reason"),
    "layer": miss(layer={}),
    "null": "null",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_line_that_is_none_of_ours_is_skipped(write, bad):
    root = write(miss(), bad, line(counts={"fx hit": 1}))
    assert [each.label for each in run_summary.read_unverified(str(root))] == ["fx miss: never seen", ""]


def test_what_is_no_readable_file_is_skipped(write):
    root = write(miss())
    os.mkfifo(root / ".safecache/journal" / "20260101T000000-2-a.jsonl")
    (root / ".safecache/journal" / "20260101T000000-3-a.jsonl").mkdir()
    (root / ".safecache/journal" / "20260101T000000-4-a.jsonl").symlink_to(
        root / ".safecache/journal" / "20260101T000000-1-a.jsonl"
    )
    (root / ".safecache/journal" / "other").write_text(json.dumps(miss()))
    assert len(run_summary.read_unverified(str(root))) == 1


def test_names_are_shown_as_text_whatever_they_are(write, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    root = write(miss(name="\\[red]ev\x1b[31mil", frame="0/0", run="[b]\x1b]0;title\x07"))
    done = run("stats", root)
    assert done.code == 0 and "\x1b" not in done.out and "fx miss: never seen" in done.out
    assert "\\[red]ev\\x1b[31mil" in done.out and "run [b]\\x1b]0;title\\x07, processes: 1" in done.out


def test_same_miss_is_shown_once_with_how_often(write, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    done = run("stats", write(*[miss(time=moment) for moment in range(1, 8)]))
    (row,) = [text for text in done.lines if text.startswith("fx miss: never seen model")]
    assert row.split()[-1] == "7"


def test_every_label_is_of_one_lookup(write):
    assert len(run_summary.LABELS) == len(set(run_summary.LABELS.values()))
