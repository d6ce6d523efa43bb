"""A build in a place that others can write to reads and writes in a private directory, with the bytes that we know."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from helpers.caches import at_each_rename

from safecache import compiles, session
from safecache.built_code import library_builds, sources
from safecache.errors import EntryRefusedError
from safecache.fs import private_directory
from safecache.integrations import generated_code
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.store import attestations, gate, manifests

TEXT = b"int kernel() { return 1; }"


@pytest.fixture
def root(tmp_path):
    session.reset()
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


@pytest.fixture
def source(root):
    path = root / "kernel.cpp"
    path.write_bytes(TEXT)
    sources.attest(str(path), TEXT)
    return path


@pytest.fixture
def place():
    with private_directory.create_temporary() as directory:
        yield directory


def command(root, place, *words):
    stock = ["g++", *map(str, words), "-o", str(root / "kernel.so")]
    return library_builds.redirect_command(stock, str(root / "kernel.so"), str(root), place)


def test_is_needed_where_others_could_exchange_what_is_read(root, tmp_path):
    assert library_builds.is_exposed(str(root / "kernel.so"))
    assert not library_builds.is_exposed(str(tmp_path / "kernel.so"))


def test_source_is_what_was_generated_whatever_lies_there_now(root, source, place):
    source.write_bytes(b"evil")
    words = command(root, place, source, "-O2")
    assert words == ["g++", f"{place}/kernel.cpp", "-O2", "-o", f"{place}/kernel.so"]
    with open(f"{place}/kernel.cpp", "rb") as file:
        assert file.read() == TEXT


def test_source_that_was_there_already_is_kept_as_it_was_found(root, place):
    path = root / "found.cpp"
    path.write_bytes(TEXT + b"\n")
    assert sources.quarantine_if_changed(str(path), TEXT, str(root))
    path.unlink()
    assert command(root, place, path)[1] == f"{place}/found.cpp"


def test_object_that_this_process_built_or_verified_is_taken(root, place):
    path = root / "kernel.o"
    path.write_bytes(b"object")
    attestations.attest_in_process(str(path), b"object")
    assert command(root, place, path)[1] == f"{place}/kernel.o"


@pytest.mark.timeout(20, method="signal")
@pytest.mark.parametrize("how", ["exchanged", "fifo", "link"])
def test_object_that_was_exchanged_since_is_refused(root, place, how):
    path = root / "kernel.o"
    attestations.attest_in_process(str(path), b"object")
    if how == "exchanged":
        path.write_bytes(b"evil")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "link":
        path.with_name("other").write_bytes(b"object")
        path.symlink_to("other")
    with pytest.raises(EntryRefusedError, match=f"{path} was replaced"):
        command(root, place, path)
    assert os.listdir(place) == [private_directory._RECORD]


def test_object_of_a_cache_that_was_cleared_is_missing_and_not_refused(root, place):
    path = root / "kernel.o"
    attestations.attest_in_process(str(path), b"object")
    with pytest.raises(FileNotFoundError):
        command(root, place, path)
    assert os.listdir(place) == [private_directory._RECORD]


def test_what_it_does_not_know_is_left_to_stock(root, source, place):
    (root / "unknown.cpp").write_bytes(TEXT)
    target = str(root / "kernel.so")
    for words in (
        ["g++", str(root / "unknown.cpp"), "-o", target],
        ["g++", str(source), f"-L{root}", "-o", target],
        ["g++", str(source), "-o", target, target],
        ["g++", str(source), "-o", "kernel.so"],
    ):
        assert library_builds.redirect_command(words, target, str(root), place) is None
    header = f"{source}.pch"
    assert library_builds.redirect_command(["clang++", str(source), "-o", header], header, str(root), place) is None


@pytest.fixture
def header(root):
    path = root / "prefix.h"
    sources.attest(str(path), b"#include <cstdlib>")
    path.write_bytes(b"evil")
    compiled = root / "prefix.h.gch"
    compiled.write_bytes(b"compiled")
    attestations.attest_in_process(str(compiled), b"compiled")
    return path


def test_header_is_copied_once_with_its_precompiled_form(root, source, header, place):
    words = command(root, place, source, "-include", header)
    copy = words[words.index("-include") + 1]
    assert copy.startswith(private_directory.get_process_directory()) and copy.endswith("/prefix.h")
    with open(copy, "rb") as text, open(f"{copy}.gch", "rb") as compiled:
        assert (text.read(), compiled.read()) == (b"#include <cstdlib>", b"compiled")
    with private_directory.create_temporary() as other:
        assert command(root, other, source, "-include", header)[3] == copy


@pytest.mark.parametrize("how", ["exchanged", "gone", "unknown"])
def test_precompiled_form_that_is_not_in_order_is_left_out(root, source, header, place, how):
    compiled = header.with_name("prefix.h.gch")
    if how == "exchanged":
        compiled.write_bytes(b"evil")
    elif how == "gone":
        compiled.unlink()
    else:
        del attestations._state.now.known[str(compiled)]
    copy = command(root, place, source, "-include", header)[3]
    assert os.listdir(os.path.dirname(copy)) == ["prefix.h"]


def test_header_in_a_private_place_stays_there(root, source, place, tmp_path):
    words = command(root, place, source, "-include", tmp_path / "prefix.h")
    assert words[3] == str(tmp_path / "prefix.h")


def test_compiler_has_its_own_files_there_if_the_temporary_directory_is_not_private(root, source, place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    with private_directory.create_temporary() as directory:
        assert not directory.startswith(str(root))
        words = command(root, directory, source)
        assert words[:3] == ["env", f"TMPDIR={directory}", "g++"]


def test_output_is_published_with_its_record_first_and_the_mode_it_was_given(root, place, monkeypatch):
    target = root / "kernel.so"
    with open(f"{place}/kernel.so", "wb") as file:
        file.write(b"library")
    os.chmod(file.name, 0o755)
    publish = library_builds.entry_files.publish
    seen = []
    monkeypatch.setattr(
        library_builds.entry_files, "publish", lambda path, *rest: (seen.append(target.exists()), publish(path, *rest))
    )
    assert library_builds.publish_output(place, str(target), str(root))
    assert seen == [False, False], "the record and the file"
    assert target.read_bytes() == b"library" and stat.S_IMODE(target.stat().st_mode) == 0o755
    attestations._state.reset()
    gate.quarantine_unattested(CodeFile(str(target), str(root)))
    assert target.exists()


def test_build_without_output_publishes_nothing(root, place):
    assert not library_builds.publish_output(place, str(root / "kernel.so"), str(root))
    assert list(root.iterdir()) == []


def test_only_a_precompiled_header_can_be_done_without():
    assert library_builds.is_dispensable("/cache/prefix.h.gch") and not library_builds.is_dispensable(
        "/cache/kernel.so"
    )


class Builder:
    """What the hook uses of a CppBuilder; ``words`` follow the source on its command line."""

    def __init__(self, root, source, *words, target="kernel.so"):
        self.target = str(root / target)
        self._output_dir, self._name = str(root), "kernel"
        self.words = ["cp", str(source), *words, self.target]
        self.built = []

    def get_target_file_path(self):
        return self.target

    def get_command_line(self):
        return shlex.join(self.words)

    def build(self):
        words = shlex.split(self.get_command_line())
        self.built.append(words)
        subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def build(root, monkeypatch):
    monkeypatch.setattr(library_builds, "find_root", lambda path: str(root))

    def run(builder):
        with compiles.override_scope(build=library_builds.Build(verifies=True)):
            generated_code.build(builder.build, builder, (), {})

    return run


def test_hook_builds_in_private(root, source, build):
    builder = Builder(root, source)
    build(builder)
    assert (root / "kernel.so").read_bytes() == TEXT and "hook inactive" not in events.read_counters()
    ((_, read, written),) = builder.built
    assert not read.startswith(str(root)) and not written.startswith(str(root))
    assert not os.path.exists(os.path.dirname(written))


def test_hook_builds_as_stock_what_it_does_not_know_and_says_so(root, source, build, caplog):
    builder = Builder(root, source, f"--suffix={root}")
    build(builder)
    assert builder.built == [builder.words] and (root / "kernel.so").read_bytes() == TEXT
    assert events.read_counters()["hook inactive"] == 1 and events.read_counters()["code sealed"] == 1
    assert any("where others can write" in record.getMessage() for record in caplog.records)


def test_build_that_fails_fails_as_in_stock(root, source, build):
    with pytest.raises(subprocess.CalledProcessError):
        build(Builder(root, source, "--no-such-option"))
    assert sorted(os.listdir(root)) == ["kernel.cpp"]


def test_header_that_cannot_be_precompiled_is_done_without(root, source, build):
    """Where there is no room for it, in a container that has nothing private but 64 MB of memory."""
    build(Builder(root, source, "--no-such-option", target="prefix.h.gch"))
    assert sorted(os.listdir(root)) == ["kernel.cpp"] and "hook inactive" not in events.read_counters()


def test_hook_builds_as_stock_where_nobody_else_can_write(root, source, build):
    root.chmod(0o755)
    builder = Builder(root, source)
    build(builder)
    assert builder.built == [builder.words] and events.read_counters() == {"code sealed": 1}


def test_precompiled_header_appears_whole_and_after_its_record(root, source, build, monkeypatch):
    """Others take no lock to look for it: they would move away what nothing attests yet."""
    root.chmod(0o755)
    target = root / "prefix.h.gch"
    published = []

    def move(made, rename):
        if Path(made).read_bytes() == TEXT:  # not its record
            assert not target.exists() and os.path.dirname(made) == str(root)
            stated = manifests.read_unverified_record(CodeFile(str(target), str(root)))
            published.append(
                gate.judge_content(CodeFile(str(target), str(root)), hashlib.sha256(TEXT).digest(), (stated,)) is None
            )
        rename()

    at_each_rename(monkeypatch, move)
    build(Builder(root, source, target=target.name))
    assert published == [True] and target.read_bytes() == TEXT
    assert gate.is_attested(CodeFile(str(target), str(root)))


def test_precompiled_header_that_fails_leaves_nothing(root, source, build):
    root.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        build(Builder(root, source, "--no-such-option", target="prefix.h.gch"))
    assert sorted(os.listdir(root)) == ["kernel.cpp"]
