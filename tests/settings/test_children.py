"""A child that runs safecache's own code imports nothing from the working directory, whoever has written there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.settings import children

PLANTED = "import os; open(os.environ['PLANTED'], 'w').close(); raise SystemExit(3)"
# What the children that there are import first, and what their interpreter does.
NAMES = ("safecache", "torch", "triton", "json", "ctypes", "re", "sitecustomize", "usercustomize")


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A working directory with a package of each name, which leaves a mark if it is imported."""
    place = tmp_path / "hostile"
    place.mkdir()
    for name in NAMES:
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(PLANTED)
        (place / name / "__main__.py").write_text(PLANTED)
    monkeypatch.chdir(place)
    return {"PLANTED": str(tmp_path / "planted"), "PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("separators", ["", ":", "::"])
@pytest.mark.parametrize("words", [["-c", "import safecache, json, re, ctypes"], ["-m", "safecache", "--version"]])
def test_planted_module_is_not_imported(hostile, tmp_path, words, separators):
    environment = hostile | {"PYTHONPATH": f"{SOURCE}{separators}"}
    command = [sys.executable, *words]
    done = subprocess.run(command, **children.make_options(environment), capture_output=True, text=True)
    assert done.returncode == 0 and not (tmp_path / "planted").exists(), done
    assert subprocess.run(command, env=hostile, capture_output=True).returncode == 3, "or nothing was shown"


def test_relative_paths_mean_the_same(hostile, tmp_path):
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": "cache",
        "SAFECACHE_LOCAL": "",
        "PATH": "bin::/bin",
        "CC": "./gcc -m64",
        "CXX": "g++",
        "TRITON_PTXAS_PATH": "cuda/ptxas",
        "TORCH_LOGS": "+dynamo",
        "SAFECACHE_STRICT": "1",
    }
    said = children.make_options(environment)["env"]
    here = str(tmp_path / "hostile")
    assert json.loads(json.dumps(said)) == {
        "TORCHINDUCTOR_CACHE_DIR": f"{here}/cache",
        "SAFECACHE_LOCAL": "",
        "PATH": f"{here}/bin:/bin",
        "CC": f"{here}/gcc -m64",
        "CXX": "g++",
        "TRITON_PTXAS_PATH": f"{here}/cuda/ptxas",
        "TORCH_LOGS": "+dynamo",
        "SAFECACHE_STRICT": "1",
        "PYTHONSAFEPATH": "1",
    }


@pytest.mark.parametrize("first", ["", str(SOURCE)])
@pytest.mark.parametrize("inherited", [{}, {"PYTHONPATH": "/nowhere"}])
def test_checkout_that_comes_first_here_is_found(monkeypatch, inherited, first):
    monkeypatch.chdir(SOURCE)
    monkeypatch.setattr(sys, "path", [first, *sys.path])
    command = [sys.executable, "-S", "-c", "import safecache; print(safecache.__file__)"]
    done = subprocess.run(command, **children.make_options(inherited), capture_output=True, text=True)
    assert done.stdout.startswith(str(SOURCE)), done.stderr


def test_checkout_that_comes_later_here_shadows_nothing(monkeypatch):
    """A module that somebody has put beside an editable package must not stand in for one of Python's own."""
    monkeypatch.chdir(SOURCE)
    monkeypatch.setattr(sys, "path", ["/usr/bin", *sys.path, str(SOURCE)])
    assert "PYTHONPATH" not in children.make_options({})["env"]
