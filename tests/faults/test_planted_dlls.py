"""The libraries of CUTLASS's kernels: what somebody else put in their place is built anew, and never loaded."""

from __future__ import annotations

import subprocess

import pytest

SOURCE = 'extern "C" int answer() { return 42; }\n'
EVIL = '#include <cstdio>\n__attribute__((constructor)) static void f() { fclose(fopen("MARKER", "w")); }\n' + SOURCE
BOTH, NONE = ["o", "so"], []
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def load(home):
    def load(*, built=None, **how):
        answer = home.run("load_cutlass_kernel", source=SOURCE, **how)
        if built is not None:
            assert answer.ok and answer.result["answer"] == 42 and answer.result["commands"] == built, answer
        return answer

    return load


@pytest.fixture
def plant(home, tmp_path):
    """Put a library in the place of that of a kernel, or an object in the place of its object."""
    marker = tmp_path / "ran"

    def plant(extension):
        (path,) = home.cache.glob(f"??/*.{extension}")
        how = "-shared" if extension == "so" else "-c"
        source = EVIL.replace("MARKER", str(marker))
        subprocess.run(["g++", "-xc++", "-", how, "-fPIC", "-o", str(path)], input=source, text=True, check=True)
        return marker

    return plant


def test_kernel_is_built_once_and_taken_by_stock_torch_too(load):
    load(built=BOTH)
    assert not load(built=NONE).warnings
    load(built=NONE, stock=True)


@STRICTNESS
@pytest.mark.parametrize(("extension", "built"), [("so", ["so"]), ("o", ["o"])])
def test_planted_code_is_built_anew(load, plant, extension, built, strict):
    load(built=BOTH)
    marker = plant(extension)
    if strict:
        assert load(strict=True).errors == ["EntryRefusedError"]
    else:
        assert len(load(built=built).warnings) == 1
        assert not load(built=NONE).warnings
    assert not marker.exists()


def test_planted_library_runs_on_stock_torch(load, plant):
    load(built=BOTH)
    marker = plant("so")
    load(stock=True)
    assert marker.exists()


def test_kernel_of_stock_torch_is_built_anew_once(load):
    load(built=BOTH, stock=True)
    answer = load(built=BOTH)
    assert answer.stats["unsealed"] == 2, answer
    assert not load(built=NONE).warnings
