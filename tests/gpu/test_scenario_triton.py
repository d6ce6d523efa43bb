"""Triton alone on a GPU, under each of its settings, cold and then warm in a fresh process: as stock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SOURCE, isolated_environment

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = ("cold", "warm")
MODES = pytest.mark.parametrize(
    "mode", ["plain", "binary-only", "always-compile", "autotuning-cache", "dump", "override"]
)
# Two of the same kernel, for two types; one; and the two configurations of an autotuned one.
LAUNCHED = ["scaled", "scaled", "silu", "silu", "softmax"]


def process(environment, *arguments):
    """Run every mode in a fresh interpreter; what it says, with what safecache has said in its log."""
    command = [sys.executable, str(Path(__file__).with_name("triton_modes.py")), *arguments]
    environment = environment | {"PYTHONPATH": f"{SOURCE}:{environment.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout[-3000:], done.stderr[-3000:])
    logged = [line for line in done.stderr.splitlines() if line.startswith("safecache:")]
    return json.loads(done.stdout.splitlines()[-1]) | {"logged": logged}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a cold and a warm process said, of stock Triton and with safecache."""

    def run_both(who):
        base = tmp_path_factory.mktemp(who)
        environment = os.environ | isolated_environment(base) | {"SAFECACHE": "0" if who == "stock" else "1"}
        return {step: process(environment, str(base), step) for step in STEPS}

    with ThreadPoolExecutor() as pool:
        return dict(zip(["stock", "safecache"], pool.map(run_both, ["stock", "safecache"]), strict=True))


def of_mode(said, mode):
    """By who and step."""
    return {(who, step): told["modes"][mode] for who, steps in said.items() for step, told in steps.items()}


def both(said, mode, step, what):
    """What stock has told, and the same with safecache."""
    stock, ours = (said[who][step]["modes"][mode][what] for who in ("stock", "safecache"))
    assert ours == stock
    return ours


@MODES
def test_numbers_are_right_and_the_same_bits(said, mode):
    told = of_mode(said, mode)
    for answer in told.values():
        # The GPU's exp and division are a few units off.
        far = [name for name, one in answer["answers"].items() if one["units"] > (32 if name == "softmax" else 2)]
        assert len(answer["answers"]) == 4 and not far, far
    assert len({json.dumps(answer["answers"], sort_keys=True) for answer in told.values()}) == 1, told


@MODES
def test_same_is_compiled_and_the_same_hits(said, mode):
    for step in STEPS:
        heard = both(said, mode, step, "heard")
        compiled = sorted(name for name, hit in heard if not hit)
        hits = sorted(name for name, hit in heard if hit)
        assembled = both(said, mode, step, "assembled")
        assert assembled == len(compiled)
        if step == "cold" or mode == "always-compile":
            assert compiled == LAUNCHED and not hits
        elif mode == "autotuning-cache":
            assert not compiled and hits == ["scaled", "scaled", "silu", "softmax"], "the best configuration alone"
        else:
            assert not compiled and hits == LAUNCHED


@MODES
def test_configurations_are_measured_as_often(said, mode):
    measured = [both(said, mode, step, "measured") for step in STEPS]
    assert measured == ([2, 0] if mode == "autotuning-cache" else [2, 2])


@MODES
def test_cache_holds_files_of_the_same_names_and_texts(said, mode):
    cold, warm = (both(said, mode, step, "files") for step in STEPS)
    assert cold == warm
    suffixes = [Path(name).suffix for name in cold]
    assert suffixes.count(".cubin") == len(LAUNCHED)
    assert (".ptx" in suffixes) is (mode != "binary-only")
    assert any(name.endswith(".autotune.json") for name in cold) is (mode == "autotuning-cache")


@MODES
def test_dump_is_that_of_stock(said, mode):
    for step in STEPS:
        dumped = {Path(name).suffix for name in both(said, mode, step, "dump")} - {""}
        is_made = (mode, step) in (("dump", "cold"), ("override", "cold"))  # which shares it, and is run later
        assert dumped == ({".ttir", ".ttgir", ".llir", ".ptx", ".cubin", ".sass"} if is_made else set())


def test_overriding_texts_are_taken_and_only_they_differ(said):
    plain, overridden = (both(said, mode, "cold", "files") for mode in ("plain", "override"))
    differing = {Path(name).name for name in plain if plain[name] != overridden[name]}
    assert plain.keys() == overridden.keys()
    assert differing == {f"scaled.{stage}" for stage in ("ttir", "ttgir", "llir", "ptx")}
    assert all(both(said, "override", step, "overridden") == 2 for step in STEPS)


def test_driver_s_helper_is_built_once(said):
    for step in STEPS:
        built = [set(said[who][step]["driver"]) for who in ("stock", "safecache")]
        assert built[0] == built[1] and any("cuda_utils" in name for name in built[0])


def test_safecache_was_at_work_and_had_nothing_to_say(said):
    assert not any(said["stock"][step]["stats"] for step in STEPS)
    assert not said["safecache"]["cold"]["logged"] and not said["safecache"]["warm"]["logged"]
    cold, warm = (said["safecache"][step]["stats"] for step in STEPS)
    assert cold["code sealed"] and warm["code verified"]
    assert lookups(cold) == {"miss": 5 * len(LAUNCHED), "bypass": len(LAUNCHED)}
    assert lookups(warm) == {"hit": 5 * len(LAUNCHED) - 1, "bypass": len(LAUNCHED)}


def lookups(stats):
    """Those of Triton's cache, by what they came to."""
    counted = Counter()
    for name, n in stats.items():
        layer, _, outcome = name.partition(":")[0].partition(" ")
        if layer == "triton" and outcome in ("hit", "miss", "bypass"):
            counted[outcome] += n
    return counted
