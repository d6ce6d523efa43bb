"""Libraries of CUTLASS's kernels and of extensions: what somebody else put in their place is rebuilt, not loaded."""

from __future__ import annotations

import subprocess

import pytest
from scenes import load_scenes

SOURCE = 'extern "C" int answer() { return 42; }\n'
EVIL = '#include <cstdio>\n__attribute__((constructor)) static void f() { fclose(fopen("MARKER", "w")); }\n' + SOURCE
BOTH, NONE = ["o", "so"], []
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def load(home):
    def load(*, built=None, **how):
        answer = home.run(load_scenes.load_cutlass_kernel, source=SOURCE, **how)
        if built is not None:
            assert answer.ok and answer.result["answer"] == 42 and answer.result["commands"] == built, answer
        return answer

    return load


@pytest.fixture
def plant(home, tmp_path):
    """Put a library in the place of another one, or an object in the place of its object."""
    marker = tmp_path / "ran"

    def plant(extension):
        directory = home.base / "extensions"
        (path,) = directory.glob(f"*.{extension}") if directory.exists() else home.cache.glob(f"??/*.{extension}")
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


# --- torch.utils.cpp_extension


@pytest.fixture
def extend(home):
    """Load an extension, and return how often ninja has built something in its directory."""
    home.environment["TORCH_EXTENSIONS_DIR"] = str(home.base / "extensions")

    def extend(*, warnings=0, **how):
        answer = home.run(load_scenes.load_operators, source=SOURCE, **how)
        assert answer.ok and answer.result["answer"] == 42 and len(answer.warnings) == warnings, answer
        return answer.result["steps"]

    return extend


def test_extension_is_built_once_and_taken_by_stock_torch_too(extend):
    assert extend() == extend() == extend(stock=True)


@STRICTNESS
@pytest.mark.parametrize("extension", ["so", "o"])
def test_planted_extension_is_built_anew(home, extend, plant, extension, strict):
    built = extend()
    forget_copy(home)
    marker = plant(extension)
    if extension == "o":
        assert extend(strict=strict) == built, "the library was not built of it"
        (home.base / "extensions" / "probe.so").unlink()
    if strict:
        assert home.run(load_scenes.load_operators, source=SOURCE, strict=True).errors == ["EntryRefusedError"]
    else:
        assert extend(warnings=1) > built
        assert extend() == extend()
    assert not marker.exists()


def forget_copy(home):
    """Remove the library that Inductor's cache has for other directories."""
    (path,) = home.cache.glob("??/c*.so")
    path.unlink()


def test_planted_extension_is_replaced_by_the_copy(extend, plant):
    built = extend()
    marker = plant("so")
    assert extend(warnings=1) == built == extend(strict=True)
    assert not marker.exists()


def test_extension_is_built_once_for_two_directories(home, extend):
    built = extend()
    (first,) = home.base.glob("extensions")
    first.rename(home.base / "first")
    (home.base / "extensions").mkdir()
    (home.base / "extensions" / ".ninja_log").write_text("")
    assert built and extend(strict=True) == 0, "steps of ninja"


def test_planted_extension_runs_on_stock_torch(extend, plant):
    extend()
    marker = plant("so")
    extend(stock=True)
    assert marker.exists()


def test_extension_whose_source_changed_is_built_and_sealed_again(home, extend):
    built = extend()
    with open(home.base / "extensions" / "probe.cpp", "a") as file:
        file.write("int more;\n")
    again = extend()
    assert again > built and extend(strict=True) == again


def test_extension_of_stock_torch_is_built_anew_once(extend):
    built = extend(stock=True)
    again = extend(warnings=1)
    assert again > built and extend() == again
