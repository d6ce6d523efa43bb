"""``safecache report``: one page about a run, out of files that anybody may have written."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from helpers.caches import HOUR, Cache, key

from safecache.cli import stats
from safecache.reporting.kinds import OF_RECOMPILE_CHECK, Reason

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e&amp;"


@pytest.fixture
def cache(tmp_path):
    made = Cache(tmp_path / "cache", 1_800_000_000.0)
    made.file(made.root / "aotautograd" / key("a", "one") / "entry", 2 * HOUR, b"x" * 5000)
    made.kernel("kernel", HOUR)
    return made


def journal_of(cache, *lines):
    who = {"time": 1.5, "run": "the-run", "pid": 1, "host": "node-7", "rank": "3", "counts": {}}
    folder = cache.root / ".safecache/journal"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "20260101T000000-1-a.jsonl").write_text("\n".join(json.dumps(who | line) for line in lines))


def miss(name="model", detail="", layer="fx", reason="never seen", **rest):
    told = {"layer": layer, "outcome": "miss", "reason": reason, "key": "k", "name": name, "detail": detail}
    return told | {"frame": "0/1"} | rest


class Page(HTMLParser):
    """The text of a page, and its elements with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.text, self.elements = "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text = " ".join(f"{self.text} {data}".split())


@pytest.fixture
def page(run, cache, tmp_path, monkeypatch):
    def make(*options, examined=False):
        if not examined:
            monkeypatch.setattr(stats, "examine_machine", lambda import_torch: [])
        done = run("report", cache.root, "-o", tmp_path / "page.html", *options)
        assert done.code == 0, done.err
        assert done.out == f"report written to {tmp_path / 'page.html'}\n"
        return Page((tmp_path / "page.html").read_text())

    return make


def test_page_tells_the_lookups_of_all_processes_and_why_they_missed(cache, page):
    journal_of(cache, miss(counts={"fx hit": 5}), miss(rank="4", pid=2), miss(layer="aot", reason="damaged"))
    found = page()
    assert "Compile caches of run the-run" in found.text and "2 processes on node-7" in found.text
    assert "FX graph hits: 5, misses: 2, bypasses: 0" in found.text and "2 miss: never seen" in found.text
    assert "AOTAutograd hits: 0, misses: 1" in found.text and "1 miss: damaged" in found.text
    assert "62.5 % of 8 lookups hit" in found.text
    assert "model FX graph miss: never seen safecache help errors#never-seen 0/1 3, 4 2" in found.text, (
        "alike, of two ranks"
    )


def test_page_has_a_bar_for_each_process_to_the_scale_of_the_longest(cache, page):
    slow = {"aot ms spent": 3000, "fx ms spent": 2000, "code ms waited": 1000}
    quick = {"aot ms in hits": 1500, "triton ms in hits": 500, "aot hit": 1, "fx hit": 1}
    journal_of(cache, {"pid": 2, "rank": "", "host": HOSTILE, "counts": quick}, {"counts": slow}, miss())
    found = page()
    text = found.text.partition("Time by process")[2]
    first = "process 1 on node-7, rank 3 compiling: 3.0 s, waiting: 1.0 s, hits: 0.0 s; 0 of 1 lookup hit"
    assert first in text and "compiling: 0.0 s, waiting: 0.0 s, hits: 2.0 s; 2 of 2 lookups hit" in text
    assert text.index(first) < text.index("process 2 on <script>alert(1)</script>\\x1b[31m")
    bars = [attributes["style"] for tag, attributes in found.elements if tag == "i" and "style" in attributes][-6:]
    assert bars == [f"width:{part}%" for part in ("75.0", "25.0", "0.0", "0.0", "0.0", "50.0")]


def test_each_bar_has_a_legend_and_a_cache_without_lookups_has_no_bar(cache, page):
    journal_of(cache, miss())
    found = page()
    assert "Lookups hit miss bypass FX graph hits: 0, misses: 1, bypasses: 0" in found.text
    assert "Time by process compiling waiting for other processes loading hits" in found.text
    assert "No lookups: AOTAutograd, Triton, ahead of time." in found.text
    assert len([tag for tag, attributes in found.elements if attributes.get("class") == "bar"]) == 2


def test_each_reason_has_the_command_that_explains_it(cache, page):
    """Its anchor is that of a heading, as GitHub makes them; once with the sum over a cache, once with the lookup."""
    reasons = [each.value for each in Reason]
    journal_of(cache, *(miss(reason=reason) for reason in reasons))
    text = page().text
    for reason in reasons:
        anchor = re.sub(r"[^\w\- ]", "", reason.lower()).replace(" ", "-")
        assert text.count(f"miss: {reason} safecache help errors#{anchor} ") == 2, reason
    assert text.count("errors#") == 2 * len(reasons)


def test_reasons_of_the_recompile_check_have_their_commands_too(cache, page):
    good, *bad = (each.value for each in OF_RECOMPILE_CHECK)
    journal_of(cache, {"counts": dict.fromkeys((good, *bad), 2)})
    said = " ".join(f"2 {reason} safecache help errors#{reason.replace(' ', '-')}" for reason in bad)
    assert f"Recompile check 2 {good} {said} " in page().text


def test_long_words_break_in_each_cell_that_can_have_them(cache, page, tmp_path):
    """Else a page is as wide as the longest."""
    word = "W" * 60
    who = {"host": word, "name": word, "rank": word, "frame": word, "detail": word}
    journal_of(cache, miss(**who), {"key": "k", "waited": 1.0, "took": 2.0})
    page()
    text = (tmp_path / "page.html").read_text()
    breaking = re.findall(r"\.(\w+)(?=[^{}]*\{ overflow-wrap: anywhere; \})", text)
    cells = re.findall(r"<td([^>]*)>(.*?)</td>", text, re.DOTALL)
    wide = [re.search(r'class="(\w+)"', attributes) for attributes, content in cells if word in content]
    assert len(wide) == 6 and all(each is not None and each[1] in breaking for each in wide)


def test_page_has_the_processes_that_took_longest(cache, page, monkeypatch):
    monkeypatch.setattr(stats, "_MOST_PROCESSES", 2)
    journal_of(cache, *({"pid": pid, "counts": {"fx ms spent": 1000 * pid}} for pid in (1, 2, 3, 4)))
    text = page().text
    assert text.index("process 4 on") < text.index("process 3 on") and "and 2 more processes, which took less." in text
    assert "process 2 on" not in text


def test_page_tells_the_entries_and_what_is_wrong_with_this_machine(cache, page, monkeypatch):
    monkeypatch.setenv("SAFECACHE_MAX_BITES", "1")
    journal_of(cache, miss())
    found = page(examined=True)
    assert "in 2 entries" in found.text and f"{key('a', 'one')[:20]}… aot 5.0 kB" in found.text
    assert "SAFECACHE_MAX_BITES" in found.text


def test_names_of_anybody_are_neither_markup_nor_obeyed(cache, page):
    journal_of(cache, miss(name=HOSTILE, detail=HOSTILE))
    found = page()
    assert "<script>alert(1)</script>\\x1b[31m\\u202e&amp;" in found.text
    assert "script" not in {tag for tag, _ in found.elements}


def test_page_needs_nothing_from_elsewhere(cache, page, tmp_path):
    journal_of(cache, miss())
    elements = page().elements
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in elements}
    assert not [attributes for _, attributes in elements if {"src", "href"} & set(attributes)]
    assert not re.search(r"url\(|@import|//", (tmp_path / "page.html").read_text())
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in elements


def test_run_without_a_miss_has_a_page_too(cache, page):
    journal_of(cache, {"counts": {"triton hit": 1}})
    assert "every lookup was a hit" in page("--run", "the-run").text


def test_latest_runs_are_listed_the_newest_first(cache, page, monkeypatch):
    monkeypatch.setattr(stats, "_MOST_RUNS", 2)
    journal_of(
        cache,
        {"time": 1.0, "run": "first", "counts": {"fx hit": 1}},
        {"time": 61.0, "run": "second", "counts": {"fx hit": 3, "fx ms spent": 1500}},
        miss(time=62.0, run="second", pid=2),
        {"time": 121.0, "run": "third", "counts": {"aot hit": 1}},
    )
    text = page("--run", "second").text
    rows = "third 1970-01-01T00:02:01Z 1 1 1 0.0 s second (this page) 1970-01-01T00:01:01Z 2 4 3 1.5 s The latest 2."
    assert f"processes lookups hits compiling {rows}" in text


def test_run_that_is_the_only_one_needs_no_list(cache, page):
    journal_of(cache, miss())
    assert "Runs recorded" not in page().text


def test_run_without_a_journal_is_said_and_leaves_no_page(cache, run, tmp_path):
    done = run("report", cache.root, "-o", tmp_path / "page.html")
    assert done.code == 1 and "no journal of run last" in done.err
    assert not (tmp_path / "page.html").exists()
