"""On a GPU: a package of AOTInductor holds cubins too, and they are attested like its library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import SOURCE, isolated_environment

from safecache.signing import seal

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROGRAM = Path(__file__).with_name("package_scene.py")


def run(base: Path, what: str, path: Path) -> dict:
    environment = os.environ | isolated_environment(base) | {"PYTHONPATH": str(SOURCE), "TMPDIR": str(base)}
    environment["CXX"] = "/usr/bin/g++"  # see the finding on static-libstdcxx
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(path)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"errors": done.stderr}


def test_package_with_kernels_is_sealed_and_loaded_in_another_process(tmp_path):
    path = tmp_path / "model.pt2"
    made = run(tmp_path, "make", path)
    assert made["close"] is True and "safecache:" not in made["errors"], made
    assert seal.split_unverified(path.read_bytes()) is not None
    with zipfile.ZipFile(path) as archive:
        assert any(name.endswith(".cubin") for name in archive.namelist()), archive.namelist()
    loaded = run(tmp_path, "load", path)
    assert loaded["close"] is True and loaded["stats"]["verified"] == 1, loaded
    path.write_bytes(seal.strip_unverified(path.read_bytes()))
    refused = run(tmp_path, "load", path)
    assert refused["close"].startswith("RefusedArtifactError: safecache: AOTInductor package"), refused
