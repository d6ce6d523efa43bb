"""Triton's kernels, compiled for a GPU that need not be there: warmed up, and their keys compared before a start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warming.programs import EXHAUSTIVE, KERNEL, Home

pytest.importorskip("triton")
pytestmark = pytest.mark.default_release


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path, KERNEL)
    code, report = home.report()
    assert code == 0 and report["processes"][0]["compiled"] == {"Triton kernels": 1}, report
    assert report["processes"][1]["hits"] == 1
    return home


def check(home, **settings):
    said = home.say("preflight", str(home.directory / "caches" / "triton"), "--json", **settings)
    assert said.returncode in (0, 1), said.stderr
    return json.loads(said.stdout)


def misses(home, **settings):
    _, report = home.report("--processes", "1", **settings)
    return report["processes"][0]["missed"] == 1


def test_variable_in_the_keys_of_kernels_is_named_and_misses(home):
    """And is all that misses: the other one is in no key, and that no GPU is here is no more than a note."""
    report = check(home, DISABLE_PTXAS_OPT="1", TRITON_CACHE_AUTOTUNING="1")
    found, *others = report["differences"]
    assert found["misses"] and all(each["what"] == "GPU" and not each["misses"] for each in others), report
    assert found["what"].startswith("DISABLE_PTXAS_OPT ") and found["baked"] == "unset", report
    assert found["remedy"] == "unset DISABLE_PTXAS_OPT"
    assert misses(home, DISABLE_PTXAS_OPT="1") and not misses(home, TRITON_CACHE_AUTOTUNING="1")


@EXHAUSTIVE
def test_other_compiler_of_kernels_is_named_and_misses(home):
    """Of the variables that name it, which releases of Triton share; all that it is in keys is what it prints."""
    other = home.directory / "ptxas"
    other.write_text('#!/bin/sh\ncase "$*" in *--version*) "$REAL" "$@"; echo other;; *) exec "$REAL" "$@";; esac\n')
    other.chmod(0o755)
    import triton

    real = next((Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("ptxas*"))
    settings = {"REAL": str(real), "TRITON_PTXAS_PATH": str(other), "TRITON_PTXAS_BLACKWELL_PATH": str(other)}
    report = check(home, **settings)
    told = [(each["what"], each["misses"]) for each in report["differences"] if each["what"] != "GPU"]
    assert told == [("Triton's compiler for cuda 90", True)], report
    assert "TRITON_PTXAS_PATH" in report["differences"][0]["remedy"]
    assert misses(home, **settings)
