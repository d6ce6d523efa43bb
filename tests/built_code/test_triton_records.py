"""A kernel whose record cannot be read is recompiled, and is there again when that can be read."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import sys
from types import SimpleNamespace

import pytest
from helpers.fresh import forget_kernels

from safecache.built_code import triton_files, triton_remote
from safecache.fs import filesystem
from safecache.integrations import triton_in_inductor
from safecache.reporting import events


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache" / "KEY")


def write(directory):
    """As Triton does: a file, and then the list with it."""
    path = triton_files.put(directory, "k.cubin", b"k.cubin one")
    triton_files.put(directory, "__grp__k.json", json.dumps({"child_paths": {"k.cubin": path}}).encode())


def read(directory):
    """Whether it is a hit."""
    forget_kernels()
    return triton_files.get_group(directory, "k.json") is not None


@pytest.fixture
def unreadable(monkeypatch):
    """Have no record be readable for a block."""
    real = filesystem.open

    def fail(path, *args, **kwargs):
        if "records" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *args, **kwargs)

    @contextlib.contextmanager
    def block():
        with monkeypatch.context() as patch:
            patch.setattr(filesystem, "open", fail)
            forget_kernels()
            yield
        forget_kernels()

    return block


def assert_said_once(caplog):
    (warning,) = caplog.messages
    assert "its record cannot be read: Permission denied" in warning and "[unreadable]" in warning


def test_group_whose_record_cannot_be_read_is_a_miss_and_stays(directory, unreadable, caplog):
    write(directory)
    with unreadable():
        assert not read(directory) and not read(directory)
    assert_said_once(caplog)
    assert read(directory) and not events.read_counters().get("quarantined")


def test_what_a_remote_cache_delivers_is_not_taken_while_its_record_cannot_be_read(directory, unreadable, caplog):
    write(directory)
    with unreadable():
        assert triton_remote.accept(object(), directory, "k.cubin", b"k.cubin one") is None
    assert_said_once(caplog)
    assert triton_remote.accept(object(), directory, "k.cubin", b"k.cubin one") is not None


def test_cubin_whose_record_cannot_be_read_is_loaded_from_a_private_copy_and_stays(directory, unreadable, caplog):
    write(directory)
    path = os.path.join(directory, "k.cubin")
    result = SimpleNamespace(kernel=SimpleNamespace(name="k", cubin_raw=b"its own", cubin_path=path))
    with unreadable():
        triton_in_inductor.reload_cubin_path(lambda: None, result, (), {})
    with open(result.kernel.cubin_path, "rb") as file:
        assert file.read() == b"its own" and result.kernel.cubin_path != path
    assert_said_once(caplog)
    assert read(directory) and not events.read_counters().get("quarantined")


def test_kernel_whose_record_cannot_be_read_is_left_out_of_an_entry(directory, unreadable, monkeypatch, caplog):
    write(directory)
    root, key = os.path.split(directory)
    bundle = dataclasses.make_dataclass("Bundle", ["kernel_artifacts"])
    kernel = dataclasses.make_dataclass("Kernel", ["kernel_hash", "directory", "artifacts"])(key, root, [])
    names = SimpleNamespace(TritonBundler=SimpleNamespace(_entries=[kernel], _REPLACE_BYTES=b"[REPLACE]"))
    monkeypatch.setitem(sys.modules, "torch._inductor.triton_bundler", names)

    def collect():
        return bundle([kernel]), "rest"

    with unreadable():
        found, rest = triton_in_inductor.collect(collect, None, (), {})
        assert found.kernel_artifacts == [] and rest == "rest"
    assert_said_once(caplog)
    assert triton_in_inductor.collect(collect, None, (), {})[0].kernel_artifacts == [kernel]
    assert not events.read_counters().get("quarantined")
