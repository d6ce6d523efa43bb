"""On a GPU: a user's Triton SiLU in a bf16 model, compiled, exported, packaged and loaded, with outcomes and bits as stock's.

Prints one JSON line for each process, with what each of its steps gave (pytest -s).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SOURCE, TESTS, isolated_environment

from safecache.built_code import packages
from safecache.doctor import installation
from safecache.signing import provenance

torch = pytest.importorskip("torch")
# The packages are built once, by the first test.
pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"), pytest.mark.timeout(900)]

WAYS = {f"{name} {mode}": (name, mode) for name in ("op", "plain") for mode in ("strict", "non-strict")}
WAY = pytest.mark.parametrize("way", WAYS)
# Dynamo, which non-strict export does without, makes a plain call a part of the graph.
REFUSED = "plain non-strict"
EXPORTED = pytest.mark.parametrize("way", [way for way in WAYS if way != REFUSED])
WHO = ("stock", "safecache")
# bf16 has 8 bits: each of the five roundings on the way adds up to 2**-9 of what is rounded.
TOLERANCE = 2**-6


class Lane:
    """The processes of one kind of torch that take one way, one after another, with caches of their own."""

    def __init__(self, base: Path, who: str, way: str) -> None:
        self.base, self.who, self.way = base, who, way
        # Not what is to be tested here: torch before 2.13 looks for vector instructions half a minute in every process.
        own = {"SAFECACHE": str(int(who == "safecache")), "TMPDIR": str(base), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
        self.environment = os.environ | isolated_environment(base) | own
        if any(found.code == "static-libstdcxx" for found in installation.check_compilers(os.environ)):
            self.environment["CXX"] = "/usr/bin/g++"  # as the finding advises: stock's packages crash too
        self.environment["PYTHONPATH"] = f"{SOURCE}:{TESTS}:{os.environ.get('PYTHONPATH', '')}"

    def run(self, when: str, *arguments: object, **variables: str) -> dict[str, dict]:
        """What each step said, and how the process ended."""
        scene = Path(__file__).with_name("silu_scene.py")
        command = [sys.executable, "-X", "faulthandler", str(scene), *map(str, arguments)]
        start = time.perf_counter()
        done = subprocess.run(
            command, env=self.environment | variables, cwd=self.base, capture_output=True, text=True, timeout=400
        )
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
        steps = {facts.pop("step"): facts for facts in said}
        steps["end"] = {"status": done.returncode, "seconds": round(time.perf_counter() - start, 1)}
        if done.returncode != 0:
            steps["end"]["stderr"] = done.stderr[-3000:]
        print(json.dumps({"way": self.way, "when": when, "who": self.who} | steps), flush=True)
        return steps

    def compile(self) -> dict[str, dict[str, dict]]:
        return {when: self.run(when, "compile", self.way) for when in ("cold", "warm")}

    def package(self) -> dict[str, dict[str, dict]]:
        """Built cold and warm, each loaded by a further process."""
        said = {}
        for when in ("cold", "warm"):
            package = self.base / f"{when}.pt2"
            said[when] = self.run(when, "build", *WAYS[self.way], package)
            if package.exists():
                said[f"loaded {when}"] = self.run(f"loaded {when}", "load", package)
        if self.way == "op strict":
            said["noexec"] = self.load_from_noexec()
        return said

    def load_from_noexec(self) -> dict[str, dict]:
        directory = self.base / "noexec"
        directory.mkdir()
        if provenance.torch_release() < packages.PACKAGES_OBEY_TMPDIR_FROM:
            directory = Path("/tmp")
        return self.run("noexec", "noexec", self.base / "cold.pt2", directory, self.base, TMPDIR=str(directory))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What every process said: by who, by way, by when, by step."""
    lanes = [Lane(tmp_path_factory.mktemp("lane"), who, way) for who in WHO for way in ("op", "plain", *WAYS)]
    with ThreadPoolExecutor(len(lanes)) as pool:
        answers = pool.map(lambda lane: lane.package() if lane.way in WAYS else lane.compile(), lanes)
        found: dict = {who: {} for who in WHO}
        for lane, answer in zip(lanes, answers, strict=True):
            found[lane.who][lane.way] = answer
    return found


def outcome(facts):
    """What must not differ from stock's: whether a step was done, or the error, and every bit of the numbers."""
    return {name: facts.get(name) for name in ("raised", "text", "digest")}


def right(facts):
    return facts.get("error", 1.0) < TOLERANCE


@pytest.mark.parametrize("name", ["op", "plain"])
def test_compiled_model_hits_when_warm_with_the_bits_of_stock(said, name):
    step = "compile"
    ours, stock = said["safecache"][name], said["stock"][name]
    for when in ("cold", "warm"):
        assert right(ours[when][step]) and right(stock[when][step]), (ours, stock)
        assert outcome(ours[when][step]) == outcome(stock[when][step])
    assert outcome(ours["warm"][step]) == outcome(ours["cold"][step])
    assert ours["cold"][step]["hits"]["aot"] == 0
    assert ours["warm"][step]["hits"]["aot"] == 1 and ours["warm"][step]["misses"] == {"aot": 0, "fx": 0}, ours


@pytest.mark.parametrize("when", ["cold", "warm"])
@WAY
def test_export_does_or_refuses_as_stock(said, way, when):
    ours, stock = said["safecache"][way][when], said["stock"][way][when]
    assert outcome(ours["export"]) == outcome(stock["export"])
    assert ("raised" in ours["export"]) == (way == REFUSED), ours["export"]


@pytest.mark.parametrize("when", ["cold", "warm"])
@EXPORTED
def test_package_is_built_and_loaded_with_the_bits_of_stock(said, way, when):
    ours, stock = said["safecache"][way], said["stock"][way]
    for step in ("run exported", "package"):
        assert outcome(ours[when][step]) == outcome(stock[when][step])
    assert "raised" not in ours[when]["package"], ours[when]["package"]
    loaded = ours[f"loaded {when}"]["load"]
    assert right(loaded), loaded
    assert outcome(loaded) == outcome(stock[f"loaded {when}"]["load"])
    assert outcome(loaded) == outcome(ours["loaded cold"]["load"])


@pytest.mark.parametrize("when", ["cold", "warm"])
@EXPORTED
def test_process_that_built_a_package_loads_it_as_stock_does(said, way, when):
    ours, stock = said["safecache"][way][when], said["stock"][way][when]
    step = "load in the same process"
    assert ours["end"]["status"] == stock["end"]["status"], (ours, stock)
    assert outcome(ours.get(step, {})) == outcome(stock.get(step, {}))


def test_package_on_a_noexec_mount_fails_with_advice_that_works(said):
    ours, stock = (said[who]["op strict"]["noexec"] for who in ("safecache", "stock"))
    if "mount" in ours:
        pytest.skip(f"nothing can be mounted here: {ours['mount']['text']}")
    if "raised" not in stock["load from noexec"]:
        pytest.skip("code is loaded from a noexec mount here")
    refused = ours["load from noexec"]
    assert refused["raised"] == stock["load from noexec"]["raised"]
    assert "failed to map segment" in stock["load from noexec"]["text"]
    assert "failed to map segment" in refused["text"] and "mounted noexec" in refused["text"], refused
    assert outcome(ours["load as advised"]) == outcome(said["stock"]["op strict"]["loaded cold"]["load"])


def test_every_other_process_ends_well(said):
    for who, ways in said.items():
        for way, times in ways.items():
            for when, steps in times.items():
                if "package" not in steps:
                    assert steps["end"]["status"] == 0, (who, way, when, steps)
