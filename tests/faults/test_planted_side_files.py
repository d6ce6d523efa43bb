"""What lies in a cache and is neither an entry nor generated code: used where it is ours, and else as if it were not there.

Each attack is shown to work on stock torch first.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from scenes import halide_archive, sink_scenes

from faults.kept import Kept
from faults.trojan import CONSTRUCTOR

STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
# Each of them begins with what one compile has left.
OPERATOR, HALIDE = pytest.mark.xdist_group("planted-operators"), pytest.mark.xdist_group("planted-halide")


# --- CompilerBisector


@pytest.fixture
def bisection(home, tmp_path):
    """A configuration to be evaluated by each torch.compile() that leaves a marker."""
    marker = tmp_path / "ran"
    folder = home.cache / "bisect" / "inductor"
    folder.mkdir(parents=True)
    (folder.parent / "bisect_status.txt").write_text("backend=inductor\nsubsystem=inductor_emulate_precision_casts\n")
    evil = f"emulate_precision_casts=open({str(marker)!r}, 'w') and True\n"
    (folder / "inductor_emulate_precision_casts_config.txt").write_text(evil)
    return marker


def test_planted_bisection_runs_on_stock_torch(home, bisection):
    assert home.run(sink_scenes.bisect, stock=True).ok and bisection.exists()


def test_planted_bisection_is_not_evaluated(home, bisection):
    answer = home.run(sink_scenes.bisect)
    assert answer.ok and answer.result["config"] is None and not bisection.exists(), answer
    assert any("bisect_status.txt [" in warning for warning in answer.warnings), answer
    assert home.run(sink_scenes.bisect).warnings == []


def test_planted_bisection_is_an_error_in_strict_mode(home, bisection):
    answer = home.run(sink_scenes.bisect, strict=True)
    assert answer.errors[-1:] == ["EntryRefusedError"] and not bisection.exists(), answer


def test_planted_configuration_of_a_real_bisection_is_not_evaluated(home, tmp_path):
    assert home.run(sink_scenes.start_bisection, config={"emulate_precision_casts": True}).ok
    (path,) = home.cache.glob("bisect/inductor/*_config.txt")
    path.write_text(f"emulate_precision_casts=open({str(tmp_path / 'ran')!r}, 'w') and True\n")
    answer = home.run(sink_scenes.bisect)
    assert answer.ok and answer.result["config"] == {} and not (tmp_path / "ran").exists(), answer


@STRICTNESS
def test_bisection_goes_on_in_another_process(home, strict):
    assert home.run(sink_scenes.start_bisection, config={"emulate_precision_casts": True}, strict=strict).ok
    answer = home.run(sink_scenes.bisect, strict=strict)
    assert answer.ok and answer.result["config"] == {"emulate_precision_casts": True}, answer
    assert answer.warnings == []


# --- The compiler that conda installs


CONDA = {"TORCH_INDUCTOR_INSTALL_GXX": "1"}
COMPILER = """#!/bin/sh
touch {marker}
exec {compiler} "$@"
"""


@pytest.fixture
def compiler(tmp_path):
    """A compiler that says that it was run."""
    path = tmp_path / "compiler"
    path.write_text(COMPILER.format(marker=tmp_path / "ran", compiler=shutil.which("g++")))
    path.chmod(0o755)
    return path


@pytest.fixture
def planted_compiler(home, compiler):
    (home.cache / "gcc" / "bin").mkdir(parents=True)
    shutil.copy(compiler, home.cache / "gcc" / "bin" / "g++")
    return compiler.parent / "ran"


def test_planted_compiler_runs_on_stock_torch(home, planted_compiler):
    assert home.run(sink_scenes.compile_anew, env=CONDA, stock=True).ok and planted_compiler.exists()


def test_planted_compiler_is_not_run(home, planted_compiler):
    answer = home.run(sink_scenes.compile_anew, env=CONDA)
    assert answer.ok and not planted_compiler.exists(), answer
    (warning,) = answer.warnings
    assert f"{home.cache}/gcc/bin/g++ [" in warning and "export CXX=" in warning


def test_planted_compiler_is_an_error_in_strict_mode(home, planted_compiler):
    answer = home.run(sink_scenes.compile_anew, env=CONDA, strict=True)
    assert "EntryRefusedError" in answer.errors and not planted_compiler.exists(), answer


def test_other_files_of_a_planted_compiler_are_not_used_either(home, planted_compiler, compiler):
    """Conda would add to what is there."""
    (home.cache / "gcc" / "bin" / "g++").rename(home.cache / "gcc" / "bin" / "as")
    answer = home.run(sink_scenes.compile_anew, env=CONDA | {"CONDA_EXE": str(compiler)})
    assert answer.ok and not planted_compiler.exists() and len(answer.warnings) == 1, answer


def test_compiler_that_was_just_installed_is_used_in_this_process(home, compiler, tmp_path):
    conda = tmp_path / "conda"
    conda.write_text(
        f'#!/bin/sh\nprefix="${{2#--prefix=}}"\nmkdir -p "$prefix/bin" && cp {compiler} "$prefix/bin/g++"\n'
    )
    conda.chmod(0o755)
    answer = home.run(sink_scenes.compile_anew, env=CONDA | {"CONDA_EXE": str(conda)})
    assert answer.ok and answer.warnings == [] and (tmp_path / "ran").exists(), answer
    (tmp_path / "ran").unlink()
    answer = home.run(sink_scenes.compile_anew, env=CONDA | {"CONDA_EXE": str(conda)})
    assert answer.ok and len(answer.warnings) == 1 and not (tmp_path / "ran").exists(), answer


# --- CUTLASS's generators


def test_operations_of_cutlass_are_not_taken_from_the_cache(home):
    """Of their text CUDA sources are made. No torch that is released writes that file."""
    assert home.run(sink_scenes.fetch_operations, stock=True).result == ["planted"]
    answer = home.run(sink_scenes.fetch_operations)
    assert answer.ok and answer.result is None and not answer.warnings, answer


@pytest.fixture
def cutlass(tmp_path):
    packages = {
        "cutlass_library": ("__init__", "generator", "library", "manifest"),
        "cutlass_cppgen": ("__init__",),
        "pycute": ("__init__",),
    }
    for package, modules in packages.items():
        folder = tmp_path / "cutlass" / "python" / package
        folder.mkdir(parents=True)
        for module in modules:
            (folder / f"{module}.py").write_text("")
    return str(tmp_path / "cutlass")


@pytest.fixture
def planted_module(home):
    folder = home.cache / "torch_cutlass"
    folder.mkdir(parents=True)
    (folder / "planted_beside_cutlass.py").write_text("")


def test_module_beside_cutlass_is_found_on_stock_torch(home, cutlass, planted_module):
    answer = home.run(sink_scenes.import_cutlass, directory=cutlass, stock=True)
    assert answer.result == {"found": True, "planted": True}, answer


@STRICTNESS
def test_module_beside_cutlass_is_not_found(home, cutlass, planted_module, strict):
    answer = home.run(sink_scenes.import_cutlass, directory=cutlass, strict=strict)
    assert answer.result == {"found": True, "planted": False} and answer.warnings == [], answer


# --- Operators that AOTInductor compiles one by one


def operator_library(home):
    (path,) = home.cache.glob("aoti_eager/aten/cpu/lib/*/*.wrapper.so")
    return path


@pytest.fixture(scope="module")
def compiled_operator(new_home):
    home = new_home()
    assert home.run(sink_scenes.run_operator).result == {"compiled": 1}
    return Kept(home)


@pytest.fixture
def operator(compiled_operator):
    """A home that holds the library of the operator."""
    return compiled_operator.again()


@OPERATOR
def test_operator_that_was_compiled_is_taken_by_stock_torch_too(operator):
    again = operator.run(sink_scenes.run_operator)
    assert again.result == {"compiled": 0} and again.warnings == [], again
    assert operator.run(sink_scenes.run_operator, stock=True).result == {"compiled": 0}


@OPERATOR
def test_planted_library_of_an_operator_runs_on_stock_torch(operator, trojan, tmp_path):
    operator.run(sink_scenes.run_operator, trojan=str(trojan), stock=True, env={"TROJAN_MARKER": str(tmp_path / "ran")})
    assert (tmp_path / "ran").exists()


@OPERATOR
@pytest.mark.parametrize("how", ["named by the listing", "in the library's place"])
def test_planted_library_of_an_operator_is_not_loaded(operator, trojan, tmp_path, how):
    marker = {"TROJAN_MARKER": str(tmp_path / "ran")}
    if how == "in the library's place":
        shutil.copy(trojan, operator_library(operator))
    named = {"trojan": str(trojan)} if how == "named by the listing" else {}
    answer = operator.run(sink_scenes.run_operator, env=marker, **named)
    assert answer.ok and answer.result == {"compiled": 1}, answer
    assert not (tmp_path / "ran").exists() and trojan.exists() and len(answer.warnings) == 1, answer
    again = operator.run(sink_scenes.run_operator, env=marker)
    assert again.result == {"compiled": 0} and again.warnings == [], again


@OPERATOR
def test_planted_library_of_an_operator_is_an_error_in_strict_mode(operator, trojan, tmp_path):
    """C++ calls us, and says no more than that it failed: the warning says why."""
    shutil.copy(trojan, operator_library(operator))
    answer = operator.run(sink_scenes.run_operator, strict=True, env={"TROJAN_MARKER": str(tmp_path / "ran")})
    assert answer.error is not None and not (tmp_path / "ran").exists(), answer
    assert "its digest is not the one that was sealed" in answer.warnings[0], answer


# --- Objects of CuTe DSL's kernels


@pytest.fixture(params=["cutedsl", "torch._vendor.quack", "quack"])
def objects(home, request):
    """Have a kernel compiled or loaded from one of the two caches."""
    pytest.importorskip("torch._inductor.runtime.cutedsl_cache", reason="torch 2.13 is the first that has it")
    home.environment["QUACK_CACHE_DIR"] = str(home.cache / "quack")

    def run(**how):
        return home.run(sink_scenes.cute_kernel, cache=request.param, **how)

    return run


def cached_object(home):
    (path,) = [path for path in home.cache.rglob("*.o") if ".safecache" not in str(path)]
    return path


@STRICTNESS
def test_object_is_compiled_once_and_taken_by_stock_torch_too(objects, strict):
    assert objects(strict=strict).result == {"compiled": 1, "loaded": []}
    again = objects(strict=strict)
    assert again.result == {"compiled": 0, "loaded": ["the object"]} and again.warnings == [], again
    assert objects(stock=True).result == {"compiled": 0, "loaded": ["the object"]}


def test_planted_object_is_loaded_by_stock_torch(home, objects):
    assert objects(stock=True).ok
    cached_object(home).write_text("evil")
    assert objects(stock=True).result == {"compiled": 0, "loaded": ["evil"]}


@pytest.mark.parametrize("ours", [True, False], ids=["in the place of ours", "in the place of stock's"])
def test_planted_object_is_compiled_anew(home, objects, ours):
    assert objects(stock=not ours).ok
    cached_object(home).write_text("evil")
    answer = objects()
    assert answer.result == {"compiled": 1, "loaded": []} and len(answer.warnings) == 1, answer
    assert objects().result == {"compiled": 0, "loaded": ["the object"]}


def test_planted_object_is_an_error_in_strict_mode(home, objects):
    assert objects().ok
    cached_object(home).write_text("evil")
    answer = objects(strict=True)
    assert answer.errors[:1] == ["EntryRefusedError"], answer


def test_objects_in_a_directory_of_others_are_not_even_looked_for(home, objects):
    """They could be exchanged between the check and the loader's look."""
    assert objects().ok
    home.cache.chmod(0o777)
    answer = objects()
    assert answer.ok and answer.result == {"compiled": 1, "loaded": []}, answer


# --- Halide's libraries


def run_halide(home, **how):
    """Compile a kernel of Halide's, or call it."""
    return home.run(sink_scenes.run_halide, directory=str(home.base / "halide"), **how)


@pytest.fixture(scope="module")
def compiled_halide(new_home):
    home = new_home()
    answer = run_halide(home)
    assert answer.ok, answer
    return Kept(home)


@pytest.fixture
def halide(compiled_halide):
    """A home that holds the kernel, and all that it is linked with."""
    return compiled_halide.again()


TROJAN = f"#include <stdio.h>\n#include <stdlib.h>\n{CONSTRUCTOR}"


def in_runtime(home):
    """A library that another is linked with: the loader opens it by its path."""
    (runtime,) = home.cache.glob("halide-runtime-*/libStandaloneHalideRuntime.so")
    source = f'{TROJAN}\nextern "C" int halide_runtime() {{ return 0; }}'
    subprocess.run(["g++", "-xc++", "-", "-shared", "-fPIC", "-o", runtime], input=source, text=True, check=True)


def in_archive(home):
    """Code to be linked into the next module that calls it."""
    (archive,) = home.cache.glob("*/*.halide/halide_kernel.a")
    halide_archive.make(str(archive), f'{TROJAN}\nextern "C" int halide_kernel(long x) {{ return 0; }}')
    for library in home.cache.glob("??/*.so"):
        library.unlink()


def in_header(home):
    (header,) = home.cache.glob("*/*.halide/halide_kernel.h")
    header.write_text(f"{header.read_text()}\n{TROJAN}")
    for library in home.cache.glob("??/*.so"):
        library.unlink()


PLANTED_HALIDE = pytest.mark.parametrize("plant", [in_runtime, in_archive, in_header])


@HALIDE
@PLANTED_HALIDE
def test_planted_library_of_halide_runs_on_stock_torch(halide, plant, tmp_path):
    plant(halide)
    answer = run_halide(halide, stock=True, env={"TROJAN_MARKER": str(tmp_path / "ran")})
    assert (tmp_path / "ran").exists(), answer


@HALIDE
@PLANTED_HALIDE
def test_planted_library_of_halide_is_made_anew(halide, plant, tmp_path):
    plant(halide)
    answer = run_halide(halide, env={"TROJAN_MARKER": str(tmp_path / "ran")})
    assert answer.ok and not (tmp_path / "ran").exists() and len(answer.warnings) == 1, answer
    answer = run_halide(halide)
    assert answer.ok and answer.warnings == [] and "code sealed" not in answer.code_stats, answer


@HALIDE
@PLANTED_HALIDE
def test_planted_library_of_halide_is_an_error_in_strict_mode(halide, plant, tmp_path):
    plant(halide)
    answer = run_halide(halide, env={"TROJAN_MARKER": str(tmp_path / "ran")}, strict=True)
    assert "EntryRefusedError" in answer.errors and not (tmp_path / "ran").exists(), answer


def test_library_of_halide_is_built_where_nobody_else_can_write(home):
    home.cache.mkdir(exist_ok=True)
    home.cache.chmod(0o777)
    answer = run_halide(home)
    assert answer.ok and not list(home.cache.glob("*/*.halide/done")), answer


# --- kernels that C++ loads by their paths


@pytest.mark.default_release
def test_graph_is_compiled_anew_whose_kernel_nothing_attests(home):
    assert home.run(sink_scenes.call_cpp_wrapper).result == {"hits": 0}
    assert home.run(sink_scenes.call_cpp_wrapper).result == {"hits": 1}
    (kernel,) = home.cache.glob("*/*.cubin")
    kernel.write_bytes(b"\x7fELF planted")
    answer = home.run(sink_scenes.call_cpp_wrapper)
    assert answer.result == {"hits": 0} and kernel.read_bytes() == b"\x7fELF kernel", answer
    assert len(answer.warnings) == 1 and f"{kernel} [" in answer.warnings[0], answer
    answer = home.run(sink_scenes.call_cpp_wrapper)
    assert answer.result == {"hits": 1} and answer.warnings == [], answer
    kernel.write_bytes(b"\x7fELF planted")
    assert "EntryRefusedError" in home.run(sink_scenes.call_cpp_wrapper, strict=True).errors
