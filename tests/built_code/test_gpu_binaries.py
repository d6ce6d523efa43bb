"""A kernel that C++ loads by its path is verified when the C++ is, and where others can write lies out of their reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from safecache.built_code import generated
from safecache.errors import EntryRefusedError
from safecache.fs import ownership
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.store import attestations, gate

CUBIN = b"\x7fELF cubin"


def forget(monkeypatch):
    """As a new process would begin."""
    attestations._state.reset()


@pytest.fixture
def root(tmp_path, monkeypatch):
    forget(monkeypatch)
    directory = tmp_path / 'a "cache" \\ of mine'
    (directory / "ab").mkdir(parents=True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(directory))
    return directory


@pytest.fixture(params=generated.ENDINGS)
def kernel(root, request):
    path = root / "ab" / f"cabc{request.param}"
    path.write_bytes(CUBIN)
    assert generated.place_kernel(str(path), str(root), CUBIN) == str(path)
    return path


def code(*paths):
    """As torch generates it."""
    named = [str(path).replace("\\", "\\\\").replace('"', '\\"') for path in paths]
    return "int x;\n" + "\n".join(f'kernel = loadKernel("{name}", "triton_0", 0, cubin_dir_);' for name in named)


def test_kernel_of_this_process_and_of_the_one_before_is_admitted(kernel, monkeypatch):
    generated.admit_kernels("int main() {}", code(kernel))
    forget(monkeypatch)
    generated.admit_kernels(code(kernel))
    assert events.read_counters() == {"code sealed": 1, "code verified": 1}


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(CUBIN[::-1]), os.unlink], ids=["planted", "gone"])
def test_graph_whose_kernel_nothing_attests_is_not_there(kernel, monkeypatch, change):
    other = kernel.with_name("cother.cubin")
    other.write_bytes(CUBIN)
    generated.place_kernel(str(other), str(kernel.parents[1]), CUBIN)
    change(kernel)
    forget(monkeypatch)
    with pytest.raises(FileNotFoundError):
        generated.admit_kernels(code(other, kernel))
    assert not kernel.exists() and other.exists()


def test_planted_kernel_is_an_error_in_strict_mode(kernel, monkeypatch, settings):
    settings(SAFECACHE_STRICT=1)
    kernel.write_bytes(CUBIN[::-1])
    forget(monkeypatch)
    with pytest.raises(EntryRefusedError):
        generated.admit_kernels(code(kernel))


def test_kernel_of_a_cache_that_was_moved_is_not_taken_where_it_was(root, tmp_path):
    """Somebody else may have made that directory since."""
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "cabc.cubin").write_bytes(CUBIN)
    with pytest.raises(FileNotFoundError):
        generated.admit_kernels(code(tmp_path / "before" / "cabc.cubin"))


def test_where_others_can_write_the_kernel_is_this_processs_own(root, monkeypatch):
    path = root / "ab" / "cabc.cubin"
    path.write_bytes(CUBIN)
    gate.attest_file(CodeFile(str(path), str(root)))
    path.parent.chmod(0o777)
    with pytest.raises(FileNotFoundError, match="has mode 0777"):
        generated.admit_kernels(code(path))
    place = generated.place_kernel(str(path), str(root), CUBIN)
    assert ownership.find_exposure(place) is None and Path(place).read_bytes() == CUBIN
    generated.admit_kernels(code(place))
