"""The ledger of whole starts: what it makes of rows, and that the guide's figure is of those that are beside it."""

from __future__ import annotations

import sys

import pytest
from conftest import SOURCE

pytest.importorskip("tomllib")
sys.path.insert(0, str(SOURCE / "tests" / "gpu"))
import clock
import ledger

GUIDE = SOURCE / "safecache" / "guide"


def start(number, arm, up, rated=(-1.0, -2.0, -3.0), **phases):
    row = {"round": number, "arm": arm, "up": up, "cpu": 2 * up, "lines": 3, "rated": rated}
    return row | {"phases": {name: [seconds, seconds / 2] for name, seconds in phases.items()}}


ROWS = [
    *(start(number, "stock", 10 + number, imports=4) for number in range(3)),
    start(0, "safecache", 9.0, rated=(-1.01, -2.04, -2.98), imports=3),
    start(1, "safecache", 11.0, rated=(-1.0, -2.0, -3.5), imports=5),
    start(2, "safecache", 18.0, rated=(-1.0, -2.1, -3.5), imports=7),
    {"round": 3, "arm": "strict", "last": ["RuntimeError"]},
]


def test_ratios_are_those_of_each_round():
    lines = {line.split(" | ")[0].strip("| "): line for line in ledger.write_table(ROWS).splitlines()}
    assert "1.000 (0.900 to 1.500)" in lines["safecache"] and "3 of 3, OTHER" in lines["safecache"]
    assert "3 of 3, equal" in lines["stock"] and lines["strict"].endswith("| 0 of 1 |")
    assert "2 of 2, equal" in ledger.write_table(ROWS[:-2])
    assert "| imports | 4.00 (2.00) | 5.00 (2.50) |" in lines["imports"]


def test_figure_of_the_guide_is_of_the_rows_beside_the_ledger():
    rows = ledger.read([SOURCE / "tests" / "gpu" / "ledgers" / "vllm.jsonl"])
    assert (GUIDE / "vllm_start.svg").read_text() == ledger.draw(rows, "vLLM 0.33: seconds until the first tokens")
    text = (GUIDE / "costs.md").read_text()
    for line in ledger.write_table(rows).splitlines()[2:9]:
        seconds, cpu = line.split(" | ")[1:3]
        assert f"| {seconds} | {cpu} |" in text, line


def test_phase_within_another_counts_once(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(clock.time, "time", lambda: float(next(now)))
    monkeypatch.setattr(clock.time, "process_time", lambda: 0.0)
    timed = clock.Clock(0.0, "other")
    outer, inner = sys.modules[__name__], "inner"
    monkeypatch.setattr(outer, "inner", lambda: "made", raising=False)
    monkeypatch.setattr(outer, "outer", lambda: (outer.inner(), outer.inner()), raising=False)
    timed.watch({f"{__name__}:outer": "compile", f"{__name__}:{inner}": "load", "no.such:function": "load"})
    assert outer.outer() == ("made", "made")
    found = timed.read()
    assert {name: wall for name, (wall, _) in found["phases"].items()} == {"other": 1.0, "compile": 3.0, "load": 2.0}
    assert found["missing"] == ["no.such:function"]
