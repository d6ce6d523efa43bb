"""The compiler of the tests copies what was made of the same input, and makes anew what was made of any other."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
from conftest import TESTS

# Counts its runs.
COMPILER = """#!/bin/sh
echo >> runs
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done
[ ! -e broken ] || exit 3
"""


@pytest.fixture
def compile(tmp_path, monkeypatch):
    """Compiles with these arguments beside the usual ones; whether the compiler was run for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    (tmp_path / "store").mkdir()
    (tmp_path / "runs").touch()
    (tmp_path / "header.h").write_text("int a;")
    (tmp_path / "a.cpp").write_text(f'#include "{tmp_path}/header.h"\n')
    (tmp_path / "compiler").write_text(COMPILER)
    (tmp_path / "compiler").chmod(0o755)

    def run(*arguments, status=0, output="a.so", what=("a.cpp", "-shared")):
        before = (tmp_path / "runs").stat().st_size
        tool = [
            sys.executable,
            "-S",
            str(TESTS / "harness" / "caching_compiler.py"),
            "store",
            str(tmp_path / "compiler"),
        ]
        done = subprocess.run([*tool, *what, "-o", output, *arguments], check=False)
        assert done.returncode == status
        return (tmp_path / "runs").stat().st_size > before

    return run


def test_same_input_is_compiled_once_whatever_the_output_is_named(compile, tmp_path):
    assert compile() and not compile() and not compile(output="b.so")
    assert (tmp_path / "b.so").read_text() == "made\n"


@pytest.mark.parametrize("changed", ["a.cpp", "header.h", "header.h.gch"])
def test_changed_input_is_compiled_anew(compile, tmp_path, changed):
    compile()
    with (tmp_path / changed).open("a") as file:
        file.write("\n// more")
    assert compile()


@pytest.mark.parametrize("flags", [["-O1"], ["-I/usr/include"]], ids=str)
def test_other_flags_are_another_input(compile, flags):
    compile()
    assert compile(*flags) and not compile(*flags)


def test_changed_library_is_another_input(compile, tmp_path):
    library = tmp_path / "part.a"
    library.write_text("1")
    assert compile(str(library)) and not compile(str(library))
    library.write_text("2")
    assert compile(str(library))


def test_headers_of_a_test_are_the_compilers_to_read(compile, tmp_path):
    assert compile(f"-I{tmp_path}") and compile(f"-I{tmp_path}")


def test_failure_is_the_compilers_and_not_kept(compile, tmp_path):
    (tmp_path / "broken").touch()
    assert compile(status=3) and compile(status=3)


def test_directory_of_temporary_files_that_is_none_is_the_compilers_to_meet(compile, monkeypatch):
    compile()
    monkeypatch.setenv("TMPDIR", "/proc")
    assert compile()


def test_copy_is_a_new_file_with_the_modes_of_the_umask(compile, tmp_path):
    before = os.umask(0o000)
    try:
        compile()
        os.umask(0o077)
        os.link("a.so", "old")
        assert not compile()
    finally:
        os.umask(before)
    made = (tmp_path / "a.so").stat()
    assert made.st_ino != (tmp_path / "old").stat().st_ino and stat.S_IMODE(made.st_mode) == 0o700


def test_objects_are_compiled_once_too(compile, tmp_path):
    assert compile(what=("a.cpp", "-c"), output="a.o") and not compile(what=("a.cpp", "-c"), output="b.o")
    assert stat.S_IMODE((tmp_path / "b.o").stat().st_mode) & 0o111 == 0


def test_precompiled_header_that_was_copied_is_as_good_as_the_first(compile, tmp_path):
    header = ("-x", "c++-header", "header.h")
    assert compile(what=header, output="draft") and not compile(what=header, output="other")
    (tmp_path / "draft").rename(tmp_path / "header.h.gch")
    assert compile()
    (tmp_path / "other").rename(tmp_path / "header.h.gch")
    assert not compile()


@pytest.mark.parametrize("linked", [True, False])
def test_headers_of_a_copy_of_torch_are_those_that_its_links_lead_to(compile, tmp_path, linked):
    (tmp_path / "site" / "torch").mkdir(parents=True)
    held = tmp_path / "site" / "torch" / "torch.h"
    held.symlink_to("/usr/include/torch/torch.h") if linked else held.touch()
    option = f"-I{tmp_path / 'site'}"
    assert compile(option) and compile(option) is not linked
