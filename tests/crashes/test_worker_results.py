"""What a worker has left is taken only if it is the kernel that was asked for, as plain files; nothing of it is run."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from safecache.fs import filesystem
from safecache.isolation import client, compiling, encoding
from safecache.isolation.client import Limits, Outcome, Request
from safecache.reporting import events

LIMITS = Limits(1.0, 10**9)


class Manager:
    def __init__(self):
        self.files, self.groups = {}, {}

    def put(self, data, filename):
        self.files[filename] = data
        return f"/cache/{filename}"

    def put_group(self, filename, group):
        self.groups[filename] = group


@pytest.fixture
def obtain(monkeypatch, tmp_path):
    """Obtain a kernel from a worker that leaves these files, and replies this beside what it should."""

    def run(files, links=(), asked="k.json", holes=(), **replied):
        request = Request(source, backend, SimpleNamespace(), "the key", asked, str(tmp_path), LIMITS)
        reply = {"key": request.hash, "folder": "KEY", "metadata": "k.json", "times": {}} | replied

        def run(self, job, directory, *, timeout, memory):
            for name, content in files.items():
                path = os.path.join(directory, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(content)
            for name, size in dict(holes).items():
                with open(os.path.join(directory, name), "wb") as file:
                    file.truncate(size)
            for name in links:
                os.symlink(tmp_path / "foreign", os.path.join(directory, name))
            return Outcome(reply, None, "", 0.1)

        monkeypatch.setattr(client.Service, "run", run)
        manager = Manager()
        return compiling.obtain(request, manager), manager

    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    source = SimpleNamespace(name="k", signature={})
    backend = SimpleNamespace(target=target, hash=lambda: "12.8-90")
    monkeypatch.setattr(encoding, "encode", lambda *rest: {})
    monkeypatch.setattr(client.Service, "start", lambda self: None)
    (tmp_path / "foreign").write_bytes(b"of somebody else")
    return run


KERNEL = {"KEY/k.json": b"{}", "KEY/k.ttir": b"ir", "KEY/k.cubin": b"\0cubin"}


def test_kernel_is_put_into_the_cache_with_its_list_last(obtain):
    made, manager = obtain(KERNEL | {"KEY/__grp__k.json": b"{}", ".tmp/x.ptx": b"left by ptxas"})
    assert manager.files == {"k.json": b"{}", "k.ttir": b"ir", "k.cubin": b"\0cubin"}
    assert list(manager.files)[-1] == "k.json" and manager.groups == {"k.json": made.group}
    assert made.group == {name: f"/cache/{name}" for name in manager.files}


@pytest.mark.parametrize(
    "changed",
    [
        {"error": None},
        {"error": {"type": "RuntimeError"}},
        {"key": "0" * 64},
        {"key": None},
        {"folder": "../KEY"},
        {"folder": "/etc"},
        {"folder": ".."},
        {"folder": ""},
        {"folder": None},
        {"folder": ["KEY"]},
        {"folder": "OTHER"},
        {"metadata": "other.json"},
        {"metadata": "k.ttir"},
        {"metadata": None},
        {"metadata": None, "asked": ""},
    ],
    ids=str,
)
def test_reply_that_is_not_about_the_kernel_leaves_the_compile_here(obtain, changed):
    made, manager = obtain(KERNEL, **changed)
    assert made is None and manager.files == manager.groups == {}
    assert events.read_counters() == {"not isolated": 1}


@pytest.mark.parametrize(
    ("folder", "place"), [("", ""), (".", ""), ("./KEY", "KEY/"), ("KEY/", "KEY/"), ("KEY/inner", "KEY/inner/")]
)
def test_kernel_elsewhere_than_in_a_folder_of_the_directory_is_not_taken(obtain, folder, place):
    made, manager = obtain({f"{place}k.json": b"{}"}, folder=folder)
    assert made is None and manager.files == {}


def test_metadata_is_what_the_worker_says_where_it_is_not_known(obtain):
    made, manager = obtain(KERNEL, asked="", metadata="k.cubin")
    assert list(made.group) == ["k.json", "k.ttir", "k.cubin"] and manager.groups == {"k.cubin": made.group}


ZEROS = {"ir_initialization": 0, "store_results": 0, "lowering_stages": []}


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        ({"ir_initialization": 3, "store_results": 2}, {"ir_initialization": 3, "store_results": 2}),
        ({"lowering_stages": [["ttir", 5], ["ptx", 7]]}, {"lowering_stages": [("ttir", 5), ("ptx", 7)]}),
        ({"lowering_stages": [["ttir", "5"], [7, 1]]}, {"lowering_stages": [("ttir", 0), ("7", 1)]}),
        ({"ir_initialization": "3", "store_results": [2]}, {}),
        ({"ir_initialization": None, "store_results": 2.5}, {}),
        ({"lowering_stages": ["ab", 5, None, ["ttir"], ["ttir", 5, 5], {"a": 1, "b": 2}]}, {}),
        ({"lowering_stages": {"ab": 1}}, {}),
        ({"lowering_stages": 5}, {}),
        ([["ir_initialization", 3]], {}),
        ("ir_initialization", {}),
        (None, {}),
    ],
    ids=str,
)
def test_times_are_taken_as_far_as_they_are_times(obtain, told, taken):
    made, _ = obtain(KERNEL, times=told)
    assert made.times == ZEROS | taken


@pytest.mark.parametrize("files", [{}, {"KEY/k.ttir": b"ir"}], ids=["none", "no-metadata"])
def test_kernel_that_is_not_whole_leaves_the_compile_here(obtain, files):
    made, manager = obtain(files)
    assert made is None and manager.files == {}


def test_link_among_the_files_is_not_followed(obtain):
    made, manager = obtain(KERNEL, links=["KEY/k.llir"])
    assert made is None and manager.files == {}


@pytest.mark.parametrize("holes", [(1 << 36,), (200 << 20, 200 << 20)], ids=["one", "several"])
def test_files_that_no_kernel_has_are_not_read(obtain, monkeypatch, holes):
    """A worker may have been taken over by what it compiles."""
    inner, seen = filesystem.read, []

    def read(*arguments):
        seen.append(inner(*arguments))
        assert sum(map(len, seen)) < 300 << 20
        return seen[-1]

    monkeypatch.setattr(filesystem, "read", read)
    made, manager = obtain(KERNEL, holes={f"KEY/k.{number}": size for number, size in enumerate(holes)})
    assert made is None and manager.files == {} and events.read_counters() == {"not isolated": 1}


def test_more_files_than_any_kernel_has_are_not_read(obtain):
    made, manager = obtain(KERNEL | {f"KEY/k.{number}": b"" for number in range(100)})
    assert made is None and manager.files == {} and events.read_counters() == {"not isolated": 1}


def test_place_that_cannot_be_had_leaves_the_compile_here(obtain, monkeypatch):
    def made():
        raise PermissionError("no directory out of the reach of others can be made")

    monkeypatch.setattr(compiling.private_directory, "create_temporary", made)
    assert obtain(KERNEL)[0] is None
    assert events.read_counters() == {"not isolated": 1}


@pytest.mark.parametrize(
    ("error", "reports"), [(encoding.FrontEndError, {}), (encoding.CannotTravel, {"not isolated": 1})]
)
def test_kernel_with_a_fault_is_not_reported_as_one_that_cannot_travel(obtain, monkeypatch, error, reports):
    def encode(source, target, options):
        raise error("its front end fails with CompilationError")

    monkeypatch.setattr(encoding, "encode", encode)
    assert obtain(KERNEL)[0] is None
    assert events.read_counters() == reports


def test_full_cache_is_an_error_as_in_stock(obtain, monkeypatch):
    def full(self, data, filename):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Manager, "put", full)
    with pytest.raises(OSError, match="No space left"):
        obtain(KERNEL)


def test_failure_of_ptxas_is_raised_without_a_second_compile(obtain, capsys):
    from triton.runtime.errors import PTXASError

    error = {
        "type": "triton.runtime.errors.PTXASError",
        "message": "PTXAS error: no such instruction",
        "stage": "cubin",
    }
    with pytest.raises(PTXASError) as caught:
        obtain({}, error=error, output="the PTX\n")
    assert str(caught.value) == error["message"] and caught.value.error_message == "no such instruction"
    assert capsys.readouterr().out == "the PTX\n"


def test_failure_of_the_front_end_is_left_to_a_compile_here(obtain):
    error = {"type": "triton.compiler.errors.CompilationError", "message": "at 3:4", "stage": "source"}
    assert obtain({}, error=error)[0] is None
    assert events.read_counters() == {}
