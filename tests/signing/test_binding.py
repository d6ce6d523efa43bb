"""What was built by another torch or Triton, or for another machine, CPU or GPU, is refused where that matters."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from helpers.sealed import KINDS

from safecache.reporting.kinds import Kind, Reason
from safecache.signing import provenance

HERE = {"machine": "x86_64", "torch": "2.15.0+cu130", "triton": "3.9.0", "gpu": "sm_80,sm_90", "python": "3.11.7"}
CHANGES = {
    "machine": "aarch64",
    "torch": "2.14.1+cu130",
    "triton": "3.8.0",
    "gpu": "sm_100",
    "cpu": "avx2 avx512f",
    "python": "3.12.1",
}
OTHERS = (Kind.KERNEL, Kind.KNOWN_BAD, Kind.NATIVE_CODE, Kind.PACKAGE, Kind.PGO_STATE, Kind.MEMO, Kind.TABLE)
ENTRIES = [kind for kind in KINDS if kind not in OTHERS]
BUILD, GPU = Reason.OTHER_BUILD, Reason.OTHER_GPU
REFUSED = {
    Kind.KERNEL: {"machine": BUILD, "triton": BUILD},
    Kind.KNOWN_BAD: {"machine": BUILD, "triton": BUILD},
    Kind.NATIVE_CODE: {"machine": BUILD, "torch": Reason.OUTDATED, "cpu": Reason.OTHER_CPU},
    Kind.PACKAGE: {"machine": BUILD, "cpu": Reason.OTHER_CPU},
    Kind.PGO_STATE: {},
    Kind.MEMO: {},
    Kind.TABLE: {},
} | {kind: {"machine": BUILD, "torch": BUILD, "triton": BUILD, "gpu": GPU} for kind in ENTRIES}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(provenance, "describe", lambda: dict(HERE))
    monkeypatch.setattr(provenance, "list_instructions", lambda: "avx2")


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_other_build_is_refused_where_it_matters(kind, changed):
    stated = {**HERE, "cpu": "avx2", changed: CHANGES[changed]}
    found = provenance.find_mismatch(kind, stated)
    assert (found and found[0]) == REFUSED[kind].get(changed), found
    if found and changed != "cpu":
        assert CHANGES[changed] in found[1] and HERE[changed] in found[1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_what_was_stated_here_is_taken_here(kind):
    assert provenance.find_mismatch(kind, provenance.make_statement(kind)) is None


@pytest.mark.parametrize("stated", [{}, dict.fromkeys(HERE, "")])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_what_is_not_known_is_no_objection(kind, stated):
    assert provenance.find_mismatch(kind, stated) is None


def test_one_gpu_of_several_will_do():
    assert provenance.find_mismatch(Kind.AOT_ENTRY, {**HERE, "gpu": "sm_90"}) is None


def test_architectures_are_told_from_when_cuda_is_initialised_on(monkeypatch):
    initialised = []
    cuda = SimpleNamespace(
        is_initialized=lambda: bool(initialised),
        device_count=lambda: 3,
        get_device_capability=lambda i: (9 - i // 2, 0),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    provenance._list_devices.cache_clear()
    assert provenance._find_architectures() == ""
    initialised.append(True)
    assert provenance._find_architectures() == "sm_80,sm_90"
    provenance._list_devices.cache_clear()


@pytest.mark.parametrize("imported", [True, False])
def test_version_of_torch_is_the_same_before_and_after_its_import(monkeypatch, tmp_path, imported):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text("debug = False\n__version__ = '2.99.0+cu999'\n")
    monkeypatch.syspath_prepend(tmp_path)
    if imported:
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.99.0+cu999"))
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert provenance.torch_version() == "2.99.0+cu999"


def test_version_of_a_torch_without_that_file_is_the_one_of_its_metadata(monkeypatch, tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(provenance, "find_version", lambda name: f"{name} of the metadata")
    assert provenance.torch_version() == "torch of the metadata"
