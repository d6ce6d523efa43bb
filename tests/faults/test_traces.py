"""torch's trace of a compile (TORCH_TRACE), which tlparse reads, tells what safecache has decided in it."""

from __future__ import annotations

import json

import pytest
from scenes import log_scenes

from faults import damage


def artifacts(directory, *, of_lookups=False):
    """What the only trace there holds of ours, about lookups or else of refusals: (its compile, its name, its payload)."""
    (path,) = directory.glob("*.log")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("\t"):
            found[-1][1] += line[1:]
        else:
            found.append([json.loads(line[line.index("] {") + 2 :]), ""])
    ours = [
        (record, text) for record, text in found if record.get("artifact", {}).get("name", "").startswith("safecache")
    ]
    assert all(record["artifact"]["encoding"] == "json" for record, _ in ours)
    told = [(record.get("frame_id"), record["artifact"]["name"], json.loads(text)) for record, text in ours]
    return [each for each in told if ("outcome" in each[2]) is of_lookups]


@pytest.fixture
def traces(tmp_path):
    # Below a directory of the session's user, whom the scenes are.
    return tmp_path / "traces"


def test_refused_entry_is_an_artifact_of_the_compile_that_refused_it(warm, traces):
    damage.flip_in_payload(warm.aot_entries[0])
    answer = warm.run(log_scenes.compile_traced, directory=str(traces))
    assert answer.ok and answer.result["aot"]["hit"] == 0, answer
    ((frame, name, payload),) = artifacts(traces)
    assert (frame, name, payload["reason"]) == (0, "safecache_damaged", "damaged")
    assert str(warm.aot_entries[0].parent) in payload["what"] and payload["remedy"]


def test_each_refusal_is_in_the_trace_though_the_warning_is_said_once(warm, traces):
    for path in warm.fx_entries:
        damage.flip_in_payload(path)
    damage.removed(warm.aot_entries[0])
    answer = warm.run(log_scenes.compile_traced, directory=str(traces))
    assert answer.ok and len(answer.warnings) == 1, answer
    assert [name for _, name, _ in artifacts(traces)] == ["safecache_damaged"] * 2


def test_strict_error_is_in_the_trace(warm, traces):
    damage.flip_in_payload(warm.aot_entries[0])
    answer = warm.run(log_scenes.compile_traced, directory=str(traces), strict=True)
    assert "EntryRefusedError" in answer.errors, answer
    assert [name for _, name, _ in artifacts(traces)] == ["safecache_damaged"]


def test_hits_write_nothing_of_ours(warm, traces):
    answer = warm.run(log_scenes.compile_traced, directory=str(traces))
    assert answer.ok and answer.result["aot"]["hit"] == 1, answer
    assert artifacts(traces) == artifacts(traces, of_lookups=True) == []


def test_lookup_that_was_no_hit_is_an_artifact_with_its_reason(warm, traces):
    damage.flip_in_payload(warm.aot_entries[0])
    assert warm.run(log_scenes.compile_traced, directory=str(traces)).ok
    ((frame, name, payload),) = artifacts(traces, of_lookups=True)
    assert (frame, name, payload["outcome"], payload["reason"]) == (0, "safecache_aot_miss", "miss", "damaged")


def test_no_trace_is_begun_where_torch_keeps_none(warm, tmp_path):
    damage.flip_in_payload(warm.aot_entries[0])
    answer = warm.run(log_scenes.compile_traced, directory="", env={"TMPDIR": str(tmp_path)})
    assert answer.ok and len(answer.warnings) == 1, answer
    assert list(tmp_path.glob("**/*.log")) == []


def test_trace_that_cannot_be_written_is_one_warning(home, traces):
    """Of ours; torch's own artifacts fail the compile there, as in stock."""
    traces.write_text("a file where the directory should be")
    answer = home.run(log_scenes.report_untraceable, directory=str(traces))
    assert answer.ok, answer
    assert ["not sealed" in text or "torch's trace: FileExistsError" in text for text in answer.warnings] == [True] * 2
