"""A shared object on a noexec mount: the same type of error as in stock, that says which mount and what to do."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig

import pytest
from conftest import needs_root

VARIABLES = {
    "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "inductor-python": "TORCHINDUCTOR_CACHE_DIR",
    "cutlass": "TORCHINDUCTOR_CACHE_DIR",
    "extension": "TORCH_EXTENSIONS_DIR",
    "triton": "TRITON_CACHE_DIR",
}
SITE = pytest.mark.parametrize("site", VARIABLES)
SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
PyMODINIT_FUNC PyInit_kernel(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def shared_object(tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "probe.so"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    include = sysconfig.get_path("include")
    subprocess.run(["g++", "-xc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture
def refused(home, shared_object):
    """A shared object that lies where no code can be loaded from."""
    point = home.base / "noexec"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=10m", "none", str(point)], check=True)
    yield shutil.copy(shared_object, point / "probe.so")
    subprocess.run(["umount", str(point)], check=True)


@needs_root
@SITE
def test_error_names_file_mount_variable_and_a_place_that_works(home, refused, site):
    if site == "triton":
        pytest.importorskip("triton")
    stock = home.run("load_shared_object", site=site, path=str(refused), stock=True)
    answer = home.run("load_shared_object", site=site, path=str(refused))
    assert stock.error in ("OSError", "ImportError") and answer.error == stock.error, answer
    text = answer.messages[0]
    assert text.startswith(f"{refused}: failed to map segment from shared object. safecache: "), text
    assert f"{refused.parent} (tmpfs: rw,noexec" in text
    assert f": export {VARIABLES[site]}=/" in text
    assert text.count("noexec") == text.count("noexec,") + text.count("/noexec") + 1, "one explanation, not two"
    assert answer.messages[1] == stock.messages[0], "the original is the cause"


@needs_root
def test_explanation_is_not_explained_again(home, refused, zygote):
    pytest.importorskip("triton")
    if tuple(map(int, zygote.torch.split(".")[:2])) < (2, 13):
        pytest.skip("torch 2.13 is the first to explain it")
    answer = home.run("load_for_triton_backend", path=str(refused))
    assert answer.error == "ImportError" and answer.messages[0].count("noexec filesystem") == 0, answer
    assert "safecache: the file lies" in answer.messages[0] and "This usually means" not in answer.messages[0], answer
    stock = home.run("load_for_triton_backend", path=str(refused), stock=True)
    assert "This usually means" in stock.messages[0], stock


@SITE
def test_shared_object_that_is_cut_short_fails_as_in_stock(home, shared_object, site):
    if site == "triton":
        pytest.importorskip("triton")
    path = home.base / "probe.so"
    path.write_bytes(shared_object.read_bytes()[:100])
    stock = home.run("load_shared_object", site=site, path=str(path), stock=True)
    answer = home.run("load_shared_object", site=site, path=str(path))
    assert stock.error and (answer.errors, answer.messages) == (stock.errors, stock.messages)


@SITE
def test_shared_object_elsewhere_is_loaded(home, shared_object, site):
    if site == "triton":
        pytest.importorskip("triton")
    answer = home.run("load_shared_object", site=site, path=str(shared_object))
    assert answer.ok and answer.result, answer
