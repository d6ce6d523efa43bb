"""The files of Triton's cache, without Triton: a group is one writer's or a miss, and what cannot be kept is readable."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from types import SimpleNamespace

import pytest
from helpers.fresh import forget_kernels

from safecache.built_code import triton_files, triton_place
from safecache.fs import filesystem
from safecache.integrations import triton_in_inductor
from safecache.places import layout
from safecache.reporting import events
from safecache.store import entry_files
from safecache.testing import failing

NAMES = ("k.ttir", "k.cubin", "k.json")


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache" / "KEY")


def write(directory, version, names=NAMES):
    """As Triton does: each file, and then the list of them."""
    with triton_files.kernel_scope():
        for name in names:
            triton_files.put(directory, name, f"{name} {version}".encode())
        listed = {name: os.path.join(directory, name) for name in triton_files.find_attested(directory, names)}
        return triton_files.put(directory, "__grp__k.json", json.dumps({"child_paths": listed}).encode())


def read(directory):
    """The versions of the files in the group; None for a miss."""
    forget_kernels()
    group = triton_files.get_group(directory, "k.json")
    if group is None:
        return None
    contents = {}
    for name, path in group.items():
        with open(path, encoding="utf-8") as file:
            contents[name] = file.read().removeprefix(f"{name} ")
    assert set(contents) == set(NAMES)
    return set(contents.values())


def test_group_is_read_as_it_was_written(directory):
    assert read(directory) is None
    write(directory, "one")
    assert read(directory) == {"one"}
    write(directory, "two")
    assert read(directory) == {"two"}


def write_oneself(directory, version):
    """As write(), with a manager's own way of writing."""

    def put(name, content):
        def store():
            os.makedirs(directory, exist_ok=True)
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)
            return file.name

        return triton_files.attest(directory, name, content, store)

    for name in NAMES:
        assert put(name, f"{name} {version}".encode()) == os.path.join(directory, name)
    listed = {name: os.path.join(directory, name) for name in triton_files.find_attested(directory, NAMES)}
    put("__grp__k.json", json.dumps({"child_paths": listed}).encode())


def test_group_that_somebody_else_wrote_is_read_if_we_attest_it(directory):
    write_oneself(directory, "one")
    assert read(directory) == {"one"}
    write(directory, "two")
    assert read(directory) == {"two"}
    write_oneself(directory, "three")
    assert read(directory) == {"three"} and not events.read_counters().get("quarantined")


def test_list_that_somebody_else_wrote_is_not_attested_without_its_files(directory):
    write_oneself(directory, "one")
    forget_kernels()
    os.remove(os.path.join(directory, "k.cubin"))
    listing = json.dumps({"child_paths": dict.fromkeys(NAMES, "")}).encode()
    path = os.path.join(directory, "__grp__k.json")
    with open(path, "wb") as file:
        file.write(listing)
    assert triton_files.attest(directory, "__grp__k.json", listing, lambda: path) == path
    assert read(directory) is None


def test_file_that_somebody_else_keeps_elsewhere_is_left_to_them(directory):
    assert triton_files.attest(directory, "k.json", b"k.json one", lambda: "elsewhere") == "elsewhere"
    with pytest.raises(OSError, match="No space left"):
        triton_files.attest(directory, "k.json", b"k.json one", no_space)


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_group_of_a_writer_who_is_not_done_is_a_miss(directory, number):
    write(directory, "one")
    forget_kernels()
    for name in NAMES[: number + 1]:
        triton_files.put(directory, name, f"{name} two".encode())
    assert read(directory) is None
    assert "quarantined" not in events.read_counters(), "each file is in order"
    write(directory, "three")
    assert read(directory) == {"three"}


def test_list_is_not_written_without_one_of_its_files(directory, monkeypatch):
    real = filesystem.rename

    def rename(source, destination, **directories):
        if destination.endswith("k.cubin"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return real(source, destination, **directories)

    monkeypatch.setattr(filesystem, "rename", rename)
    write(directory, "one")
    assert not os.path.exists(os.path.join(directory, "__grp__k.json")) and read(directory) is None
    assert events.read_counters()["unwritable"] == 1
    monkeypatch.undo()
    write(directory, "two")
    assert read(directory) == {"two"}


def test_moved_cache_hits(directory, tmp_path):
    write(directory, "one")
    shutil.move(tmp_path / "cache", tmp_path / "elsewhere")
    assert read(str(tmp_path / "elsewhere" / "KEY")) == {"one"}


@pytest.mark.parametrize("name", ["../outside", "", "a/b"])
def test_name_that_leads_out_of_the_directory_is_no_name(name):
    assert triton_place.parse_names(json.dumps({"child_paths": {"k.json": "", name: ""}}).encode()) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"child_paths": 1}', b"\xff", b"[" * 100000])
def test_list_that_is_none_has_no_names(content):
    assert triton_place.parse_names(content) is None


def test_file_that_cannot_be_kept_is_read_from_a_copy_and_the_next_attempt_keeps_it(directory, monkeypatch, caplog):
    def full(*rest, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(entry_files, "publish", full)
    path = triton_files.put(directory, "k.cubin", b"cubin")
    assert os.path.basename(path) == "k.cubin" and not path.startswith(directory)
    with open(path, "rb") as file:
        assert file.read() == b"cubin"
    triton_files.put(directory, "k.json", b"json")
    assert len(caplog.messages) == 1 and "TRITON_CACHE_DIR" in caplog.messages[0]
    monkeypatch.undo()
    assert triton_files.put(directory, "k.cubin", b"cubin") == os.path.join(directory, "k.cubin")


@pytest.fixture
def kernel_write():
    with triton_files.kernel_scope():
        yield triton_files.current_write()


def test_kernel_is_made_from_memory_where_its_files_are_gone(directory, kernel_write):
    group = {"k.json": triton_files.put(directory, "k.json", b"json")}
    shutil.rmtree(directory)

    def construct(group):
        with open(group["k.json"], "rb") as file:
            return file.read()

    assert kernel_write.read_back(construct, group) == b"json"
    with pytest.raises(FileNotFoundError):
        kernel_write.read_back(construct, group)


def test_other_errors_of_a_kernel_that_is_made_are_its_own(directory, kernel_write):
    group = {"k.json": triton_files.put(directory, "k.json", b"json")}
    made = []

    def construct(group):
        made.append(group)
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/somewhere/else")

    with pytest.raises(OSError, match="somewhere"):
        kernel_write.read_back(construct, group)
    assert len(made) == 1 and not events.read_counters().get("unreadable")


def leave(directory, pid, age):
    path = os.path.join(directory, f"tmp.pid_{pid}_01234567-89ab-cdef-0123-456789abcdef")
    os.makedirs(path)
    with open(os.path.join(path, "k.cubin"), "wb") as file:
        file.write(b"half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def dead_pid():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


@pytest.mark.parametrize(
    ("whose", "age", "stays"), [("dead", 2 * 86400, False), ("dead", 60, True), ("living", 2 * 86400, True)]
)
def test_directory_of_a_dead_writer_is_removed_by_the_next(directory, whose, age, stays):
    path = leave(directory, dead_pid() if whose == "dead" else os.getpid(), age)
    triton_files.put(directory, "k.cubin", b"cubin")
    assert os.path.exists(path) is stays


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tmp.pid_12_01234567-89ab-cdef-0123-456789abcdef", True),
        (".0123456789abcdef.tmp", True),
        (".12.3456.tmp", True),
        ("k.cubin", False),
        ("tmp.pid_12_k", False),
    ],
)
def test_name_tells_what_is_still_written(name, expected):
    assert layout.is_temporary(name) is expected


def test_what_is_still_written_is_no_code_of_the_cache(tmp_path):
    directory = str(tmp_path / ("A" * 52))
    leave(directory, os.getpid(), 0)
    path = triton_files.put(directory, "k.cubin", b"cubin")
    assert [code.path for code in layout.walk_code(str(tmp_path))] == [path]


@pytest.mark.parametrize("raw", [b"cubin", None], ids=["at-hand", "not-at-hand"])
def test_binary_that_cannot_be_written_to_its_place_is_loaded_from_a_copy(directory, raw, caplog):
    path = os.path.join(directory, "k.cubin")

    def missing():
        raise RuntimeError("Cubin file saved by TritonBundler not found at %s", path)

    result = SimpleNamespace(kernel=SimpleNamespace(name="k", cubin_raw=raw, cubin_path=None))
    with failing("mkdir", "EROFS", directory):
        if raw is None:
            with pytest.raises(RuntimeError, match="not found"):
                triton_in_inductor.reload_cubin_path(missing, result, (), {})
            return
        triton_in_inductor.reload_cubin_path(missing, result, (), {})
    with open(result.kernel.cubin_path, "rb") as file:
        assert file.read() == raw
    assert not os.path.exists(path) and result.kernel.cubin_raw == raw
    assert len(caplog.messages) == 1 and "Read-only file system" in caplog.messages[0]


def test_other_errors_of_a_binary_are_torchs_own(directory):
    def fail():
        raise RuntimeError("no such device")

    result = SimpleNamespace(kernel=SimpleNamespace(name="k", cubin_raw=b"cubin", cubin_path=None))
    with pytest.raises(RuntimeError, match="no such device"):
        triton_in_inductor.reload_cubin_path(fail, result, (), {})
    assert result.kernel.cubin_raw == b"cubin" and result.kernel.cubin_path is None


def test_file_that_another_writer_replaces_before_it_is_moved_away_is_a_hit(directory, monkeypatch):
    write(directory, "one")
    path, good = os.path.join(directory, "k.cubin"), b"k.cubin one"
    entry_files.replace(path, b"damaged")
    quarantine = entry_files.quarantine

    def replace_first(*args):
        entry_files.replace(path, good)
        return quarantine(*args)

    monkeypatch.setattr(entry_files, "quarantine", replace_first)
    forget_kernels()
    assert triton_place.Place(directory).take("k.cubin") is not None
    assert read(directory) == {"one"} and not events.read_counters().get("quarantined")
