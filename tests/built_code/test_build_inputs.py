"""What a compiler is about to read below a cache is what this process knows, or it is not built."""

from __future__ import annotations

import pytest

from safecache import session
from safecache.built_code import library_builds
from safecache.errors import EntryRefusedError
from safecache.places.layout import CodeFile
from safecache.store import attestations, gate

INCLUDE = b"#include <torch/csrc/inductor/cpp_prefix.h>\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    session.reset()
    for folder in ("cache/ab", "headers/own"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def check(root):
    def check(*words, compiler="g++"):
        target = str(root / "cache" / "ab" / "abc.so")
        stock = [compiler, *map(str, words), "-o", target]
        library_builds.check_inputs(stock, target, str(root / "cache"), str(root / "headers"))

    return check


@pytest.fixture
def source(root):
    path = root / "cache" / "ab" / "abc.cpp"
    path.write_bytes(b"int f();")
    return path


@pytest.fixture
def header(root):
    path = root / "headers" / "own" / "h.h"
    path.write_bytes(INCLUDE)
    return path


def test_source_that_this_process_has_generated_is_read(check, source):
    attestations.attest_in_process(str(source), b"int f();")
    check(source)


@pytest.mark.parametrize("expected", [True, False], ids=["replaced", "unknown"])
def test_source_that_is_another_is_not(check, source, expected):
    if expected:
        attestations.attest_in_process(str(source), b"int g();")
    with pytest.raises(EntryRefusedError, match=r"abc\.cpp was replaced"):
        check(source)


def test_what_lies_elsewhere_is_the_users(check, tmp_path):
    (tmp_path / "own.cpp").write_bytes(b"int f();")
    check(tmp_path / "own.cpp", "-include", tmp_path / "own.h", f"-I{tmp_path / 'cache'}", tmp_path / "cache" / "ab")


def test_compiler_is_no_input(check, root):
    """One that was installed in the cache just now is judged where it is looked for."""
    check(compiler=str(root / "cache" / "gcc" / "bin" / "g++"))


@pytest.mark.parametrize("expected", [True, False], ids=["known", "of-before-the-hooks"])
def test_header_that_includes_one_of_torchs_own_is_read(check, header, expected):
    if expected:
        attestations.attest_in_process(str(header), INCLUDE)
    check("-include", header)


@pytest.mark.parametrize(
    "content",
    [
        b"#include <torch/csrc/../../evil.h>\n",
        b"#include </tmp/evil.h>\n",
        INCLUDE + b"int evil();\n",
        b"#include <torch/a.h>\n#include <evil.h>\n",
        b"",
    ],
)
@pytest.mark.parametrize("expected", [True, False], ids=["known", "of-before-the-hooks"])
def test_header_that_holds_anything_else_is_not(check, header, content, expected):
    if expected:
        attestations.attest_in_process(str(header), INCLUDE)
    header.write_bytes(content)
    with pytest.raises(EntryRefusedError, match=r"h\.h was replaced"):
        check("-include", header)


@pytest.mark.parametrize("kept", [True, False])
def test_precompiled_header_is_read_if_it_is_attested(check, header, kept):
    """Else the compiler reads the header itself."""
    compiled = header.with_name("h.h.gch")
    compiled.write_bytes(b"gpch")
    header.with_name("h.h.gch.load_ok").touch()
    if kept:
        gate.attest_file(CodeFile(str(compiled), str(header.parent)))
    check("-include", header)
    assert compiled.exists() is kept


def test_precompiled_header_that_cannot_be_read_just_now_is_not_left_to_the_compiler(check, header, monkeypatch):
    header.with_name("h.h.gch").write_bytes(b"gpch")
    digest = gate.opening.digest_regular

    def fail(path, *rest, **named):
        if path.endswith(".gch"):
            raise OSError(24, "Too many open files")
        return digest(path, *rest, **named)

    monkeypatch.setattr(gate.opening, "digest_regular", fail)
    with pytest.raises(OSError, match="Too many open files"):
        check("-include", header)
