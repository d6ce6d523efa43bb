"""``stats``, ``report`` and ``explain`` find what processes of vLLM have written, below vLLM's own directory."""

from __future__ import annotations

import json
import time

import pytest

AOT = "torch_aot_compile/" + "6" * 64
PLACES = [
    pytest.param(f"{AOT}/inductor_cache", id="aot"),
    pytest.param("0123456789/rank_0_0/inductor_cache", id="not-aot"),
    pytest.param("0123456789/rank_0_1/triton_cache", id="triton"),
]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the journal of a process that has missed ``name``, in a cache of vLLM's."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "triton").mkdir()

    def run(place, name="model.forward"):
        folder = tmp_path / "vllm" / "torch_compile_cache" / place / ".safecache" / "journal"
        folder.mkdir(parents=True)
        missed = {"layer": "triton", "key": "k", "name": name, "outcome": "miss", "reason": "never seen", "detail": ""}
        line = missed | {"time": time.time(), "run": "r1", "pid": 1, "host": "h", "counts": {}}
        (folder / "20260101T000000-1-a.jsonl").write_text(json.dumps(line) + "\n")
        return tmp_path / "vllm"

    return run


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("named", ["nothing", "vllm", "triton"])
def test_stats_has_what_vllm_looked_up(write, run, tmp_path, place, named):
    root = write(place)
    directories = {"nothing": [], "vllm": [root / "torch_compile_cache"], "triton": [tmp_path / "triton"]}[named]
    said = json.loads(run("stats", "--json", *directories).out)
    assert [line["name"] for line in said["missed"]] == ["model.forward"]


def test_report_has_what_vllm_looked_up(write, run, tmp_path):
    write(f"{AOT}/inductor_cache", "model.Unusual.forward")
    assert run("report", "-o", tmp_path / "page.html").code == 0
    assert "model.Unusual.forward" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("place", PLACES)
def test_explain_has_what_vllm_missed(write, run, place):
    root = write(place)
    for named in ([], ["--dir", root / "torch_compile_cache"]):
        assert [row["name"] for row in json.loads(run("explain", "--json", *named).out)["misses"]] == ["model.forward"]


def test_directories_of_others_are_not_searched(write, run, tmp_path):
    write("models/inductor_cache")
    assert run("stats", tmp_path / "vllm" / "torch_compile_cache").code == 1


def test_another_directory_without_a_journal_is_said(write, run, tmp_path):
    write(f"{AOT}/inductor_cache")
    (tmp_path / "other").mkdir()
    assert run("stats", tmp_path / "other").code == 1
