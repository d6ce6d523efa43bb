"""``safecache explain`` without torch: what the journal and vLLM say beside the records, and who may write there."""

from __future__ import annotations

import json
import os
import time

import pytest

from safecache import key_records
from safecache.cli.main import main
from safecache.key_records import Component, KeyRecord
from safecache.lookups import Layer

KEY, OTHER = "a" + "b" * 51, "a" + "c" * 51


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def remember(cache, key, config, name="model.f", process="1"):
    parts = (Component("inductor config max_autotune", config, config),)
    key_records.remember(KeyRecord(Layer.AOT, key, name, 0.0, parts, process=process), str(cache))


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


def factors(cache, folder, age, **said):
    place = cache / folder / "rank_0_0" / "backbone"
    place.mkdir(parents=True)
    env = {"VLLM_USE_AOT_COMPILE": "1", "VLLM_API_KEY": "hunter2"}
    stated = {
        "env": env,
        "config_hash": "0a1b",
        "compiler_hash": "77",
        "code": [{"filepath": "model.py", "content": "x"}],
    }
    (place / "cache_key_factors.json").write_text(json.dumps(stated | said))
    os.utime(place / "cache_key_factors.json", (1e9 - age, 1e9 - age))
    return place


def test_factors_of_vllm_are_compared_with_the_ones_before(cache, capsys):
    before = factors(cache, "1111111111", 100)
    after = factors(
        cache, "2222222222", 50, env={"VLLM_USE_AOT_COMPILE": "0", "VLLM_API_KEY": "other"}, config_hash="9f"
    )
    code, text = explain(cache, capsys, "--json")
    [row] = json.loads(text)["vllm"]
    assert code == 0 and (row["directory"], row["against"]) == (str(after), str(before))
    assert row["text"].startswith("config_hash: 0a1b → 9f; ") and "env VLLM_USE_AOT_COMPILE: 1 → 0" in row["text"]
    assert "hunter2" not in text


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"7", b"\xff\xfe", b'{"a": '])
def test_what_is_no_file_of_vllms_is_passed_over(cache, capsys, content):
    place = factors(cache, "1111111111", 100)
    (place / "cache_key_factors.json").write_bytes(content)
    factors(cache, "2222222222", 50)
    code, _ = explain(cache, capsys)
    assert code == (0 if content == b"7" else 1)


def test_terminal_obeys_nothing_that_a_record_says(cache, capsys):
    remember(cache, KEY, "\x1b]0;owned\x07", name="\x1b[2Jmodel")
    remember(cache, OTHER, "\x1b[31m", name="\x1b[2Jmodel", process="2")
    _, text = explain(cache, capsys)
    assert "\x1b" not in text and "\\x1b[31m" in text
