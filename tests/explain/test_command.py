"""``safecache explain`` without torch: what the journal says beside the records, and who may write there."""

from __future__ import annotations

import json
import time

import pytest

from safecache.cli.main import main
from safecache.explain import key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.reporting.kinds import Kind

KEY, OTHER = "a" + "b" * 51, "a" + "c" * 51


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def remember(cache, key, config, name="model.f", process="1"):
    parts = (Component("inductor config max_autotune", config, config),)
    key_records.remember(KeyRecord(Kind.AOT_ENTRY, key, name, 0.0, parts, process=process), str(cache))


def explain(cache, capsys, *arguments):
    code = main(["explain", "--dir", str(cache), *arguments])
    return code, capsys.readouterr().out


def rows(cache, capsys, *arguments):
    return json.loads(explain(cache, capsys, "--json", *arguments)[1])["misses"]


def journal(cache, *misses):
    folder = cache / ".safecache" / "journal"
    folder.mkdir(parents=True, exist_ok=True)
    said = [
        {"layer": "aot", "key": KEY, "name": "model.f", "outcome": "miss", "reason": "key differs", "detail": ""}
        | {"time": time.time(), "run": "r1", "pid": 1, "host": "h", "counts": {}}
        | miss
        for miss in misses
    ]
    (folder / "20260101T000000-1-a.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in said) + '{"layer": "aot", "ke'
    )


def test_cache_without_records_says_so_and_is_a_finding(cache, capsys):
    assert explain(cache, capsys) == (1, "nothing is recorded of misses here\n")


@pytest.mark.parametrize(("what", "found"), [("model.f", 1), ("model", 2), (KEY[:10], 1), ("g", 1), ("nothing", 0)])
def test_name_or_key_chooses_what_is_explained(cache, capsys, what, found):
    remember(cache, KEY, "True")
    remember(cache, OTHER, "False", name="model.g")
    assert len(rows(cache, capsys, what)) == found


def test_only_the_last_are_shown(cache, capsys):
    remember(cache, KEY, "True")
    remember(cache, OTHER, "False", process="2")
    [row] = rows(cache, capsys, "--last", "1")
    assert row["text"].startswith("AOTAutograd entry of model.f: inductor config max_autotune: True → False (against")


def test_miss_of_the_journal_is_shown_with_its_reason_and_with_what_differs(cache, capsys):
    remember(cache, OTHER, "False")
    remember(cache, KEY, "True", process="2")
    journal(cache, {}, {"outcome": "hit"}, {"layer": "moon"}, {"time": "soon"})
    [row] = [row for row in rows(cache, capsys) if row["key"] == KEY]
    assert (row["reason"], row["run"]) == ("key differs", "r1")
    assert row["differences"] == [{"what": "inductor config max_autotune", "before": "False", "after": "True"}]


def test_run_chooses_the_misses_of_the_journal(cache, capsys):
    remember(cache, OTHER, "False")
    journal(cache, {}, {"run": "r2", "reason": "unsealed", "detail": "by nobody"})
    [row] = rows(cache, capsys, "--run", "r2")
    assert (row["reason"], row["cause"]) == ("unsealed", "unsealed by nobody")
    assert rows(cache, capsys, "--run", "r3") == []


def test_terminal_obeys_nothing_that_a_record_says(cache, capsys):
    remember(cache, KEY, "\x1b]0;owned\x07", name="\x1b[2Jmodel")
    remember(cache, OTHER, "\x1b[31m", name="\x1b[2Jmodel", process="2")
    _, text = explain(cache, capsys)
    assert "\x1b" not in text and "\\x1b[31m" in text
