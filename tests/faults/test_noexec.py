"""A shared object on a noexec mount: the same type of error as in stock, that says which mount and what to do."""

from __future__ import annotations

import re
import subprocess

import pytest
from conftest import needs_root
from scenes import load_scenes

VARIABLES = {
    "inductor": "TORCHINDUCTOR_CACHE_DIR",
    "inductor-python": "TORCHINDUCTOR_CACHE_DIR",
    "cutlass": "TORCHINDUCTOR_CACHE_DIR",
    "extension": "TORCH_EXTENSIONS_DIR",
    "operators": "TORCH_EXTENSIONS_DIR",
    "aot": "TORCHINDUCTOR_CACHE_DIR",
    "aot-autograd": "TORCHINDUCTOR_CACHE_DIR",
    "triton": "TRITON_CACHE_DIR",
}
SITE = pytest.mark.parametrize("site", VARIABLES)
# AOTInductor calls into what it loads.
LOADS_ONLY = pytest.mark.parametrize("site", [site for site in VARIABLES if not site.startswith("aot")])


@needs_root
@SITE
def test_error_names_file_mount_variable_and_a_place_that_works(home, refused, site):
    if site == "triton":
        pytest.importorskip("triton")
    stock = home.run(load_scenes.load_shared_object, site=site, path=str(refused), stock=True)
    answer = home.run(load_scenes.load_shared_object, site=site, path=str(refused))
    assert stock.error in ("OSError", "ImportError", "RuntimeError") and answer.error == stock.error, answer
    text = answer.messages[0]
    assert text.startswith(f"{refused}: failed to map segment from shared object. safecache: "), text
    assert f"{refused.parent} (tmpfs: rw,noexec" in text
    assert f"Help: export {VARIABLES[site]}=/" in text
    assert text.count("which is mounted noexec") == 1, "one explanation, not two"
    assert answer.messages[1] == stock.messages[0], "the original is the cause"


@needs_root
def test_thread_that_loads_says_the_same(home, refused):
    answer = home.run(load_scenes.load_in_thread, site="inductor", path=str(refused))
    assert answer.error == "OSError" and ": export TORCHINDUCTOR_CACHE_DIR=/" in answer.messages[0], answer


@needs_root
def test_compile_worker_says_the_same(home, refused):
    answer = home.run(load_scenes.load_in_compile_worker, site="inductor", path=str(refused))
    assert answer.error == "SubprocException", answer
    assert f"OSError: {refused}: failed to map" in answer.messages[0], answer
    assert ": export TORCHINDUCTOR_CACHE_DIR=/" in answer.messages[0], answer


@needs_root
def test_package_is_unpacked_to_a_noexec_mount(home, shared_object, zygote):
    arguments = {"path": "/tmp/package.pt2", "library": str(shared_object), "env": {"TMPDIR": "/tmp"}}
    stock = home.run(load_scenes.load_package, stock=True, **arguments)
    assert stock.error == "RuntimeError" and "failed to map segment" in stock.messages[0], stock
    answer = home.run(load_scenes.load_package, **arguments)
    assert answer.error == "RuntimeError" and "/tmp (tmpfs: rw,noexec" in answer.messages[0], answer
    moves = tuple(map(int, zygote.torch.split(".")[:2])) >= (2, 13)
    assert (": export TMPDIR=/" if moves else ": mount -o remount,exec /tmp") in answer.messages[0], answer
    assert "failed to map segment" in answer.messages[1] and "safecache" not in answer.messages[1], answer


@pytest.fixture
def noexec_cache(home):
    home.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=755", "none", str(home.cache)], check=True)
    yield home
    subprocess.run(["umount", str(home.cache)], check=True)


@needs_root
def test_probe_of_vector_instructions_is_made_elsewhere(noexec_cache):
    home = {"HOME": str(noexec_cache.base), "XDG_CACHE_HOME": str(noexec_cache.base / "elsewhere")}
    answer = noexec_cache.run(load_scenes.find_vector_instructions, env=home)
    assert answer.result is True and len(answer.warnings) == 1, answer
    (said,) = answer.warnings
    assert f"{noexec_cache.cache} (tmpfs: rw,noexec" in said and ": export TORCHINDUCTOR_CACHE_DIR=/" in said
    pasted = re.search(r"\[not executable\].*Help: export (TORCHINDUCTOR_CACHE_DIR)=(\S+)", said)
    assert pasted[2].startswith(str(noexec_cache.base)), said
    moved = noexec_cache.run(load_scenes.find_vector_instructions, env=dict([pasted.groups()]))
    assert moved.result is True and not moved.warnings, moved
    stock = noexec_cache.run(load_scenes.find_vector_instructions, stock=True)
    assert stock.result is False and not stock.warnings, stock
    strict = noexec_cache.run(load_scenes.find_vector_instructions, strict=True)
    assert strict.error == "ExecutionError" and ": export TORCHINDUCTOR_CACHE_DIR=/" in strict.messages[0], strict


@needs_root
def test_explanation_is_not_explained_again(home, refused, zygote):
    pytest.importorskip("triton")
    if tuple(map(int, zygote.torch.split(".")[:2])) < (2, 13):
        pytest.skip("torch 2.13 is the first to explain it")
    answer = home.run(load_scenes.load_for_triton_backend, path=str(refused))
    assert answer.error == "ImportError" and answer.messages[0].count("noexec filesystem") == 0, answer
    assert "safecache: the file is" in answer.messages[0] and "This usually means" not in answer.messages[0], answer
    stock = home.run(load_scenes.load_for_triton_backend, path=str(refused), stock=True)
    assert "This usually means" in stock.messages[0], stock


@SITE
def test_shared_object_that_is_cut_short_fails_as_in_stock(home, shared_object, site):
    if site == "triton":
        pytest.importorskip("triton")
    path = home.base / "probe.so"
    path.write_bytes(shared_object.read_bytes()[:100])
    stock = home.run(load_scenes.load_shared_object, site=site, path=str(path), stock=True)
    answer = home.run(load_scenes.load_shared_object, site=site, path=str(path))
    assert stock.error and (answer.errors, answer.messages) == (stock.errors, stock.messages)


@LOADS_ONLY
def test_shared_object_elsewhere_is_loaded(home, shared_object, site):
    if site == "triton":
        pytest.importorskip("triton")
    answer = home.run(load_scenes.load_shared_object, site=site, path=str(shared_object))
    assert answer.ok and answer.result, answer
