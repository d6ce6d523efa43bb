"""A static launcher loads the cubin that was verified, or none: whatever goes wrong while that is asked."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from helpers.fresh import forget_kernels

from safecache.errors import EntryRefusedError
from safecache.launchers import kernel_recipe
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.store import gate, manifests
from safecache.tiers.directory_faults import Unreadable

GOOD, EVIL = b"\x7fELF good", b"\x7fELF evil"


class StaticKernel(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def cubin(tmp_path):
    """One that was made in another process, and has a record."""
    path = tmp_path / "triton" / "KEY" / "kernel.cubin"
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD)
    assert gate.attest_file(CodeFile(str(path), str(path.parents[1]), Kind.KERNEL))
    forget_kernels()
    return path


def result_of(path, raw=None):
    kernel = StaticKernel(name="kernel", cubin_path=str(path), cubin_raw=raw)
    return SimpleNamespace(kernel=kernel, reload_cubin_path=lambda: None)


def keep(result):
    """What would be loaded then: None if nothing."""
    try:
        kernel_recipe.keep_cubin(result)
    except (OSError, EntryRefusedError) as error:
        assert result.kernel.cubin_path is None, error
        return None
    with open(result.kernel.cubin_path, "rb") as file:
        return file.read()


def unreadable_record(cubin, monkeypatch):
    def refuse(path, *rest, **named):
        raise Unreadable(13, "Permission denied", path)

    monkeypatch.setattr(manifests, "read_unverified_record", refuse)


def obstacle(cubin, monkeypatch):
    """What is refused cannot be moved away either."""
    (cubin.parents[1] / ".safecache" / "quarantine").touch()


def gone_at_the_check(cubin, monkeypatch):
    """Where others can write, something else lies there by the time of the load."""
    cubin.parents[1].chmod(0o777)
    judge = gate.judge_file

    def vanish(file):
        os.unlink(file.path)
        try:
            return judge(file)
        finally:
            cubin.write_bytes(EVIL)

    monkeypatch.setattr(gate, "judge_file", vanish)


ATTACKS = [lambda cubin, monkeypatch: None, unreadable_record, obstacle, gone_at_the_check]


def test_what_has_a_record_is_loaded_from_where_it_lies(cubin):
    result = result_of(cubin)
    assert keep(result) == GOOD and result.kernel.cubin_path == str(cubin)


@pytest.mark.parametrize("attack", ATTACKS, ids=["none", "unreadable-record", "obstacle", "gone-at-the-check"])
def test_planted_cubin_is_not_loaded(cubin, monkeypatch, attack):
    cubin.write_bytes(EVIL)
    attack(cubin, monkeypatch)
    assert keep(result_of(cubin)) is None


@pytest.mark.parametrize("attack", ATTACKS, ids=["none", "unreadable-record", "obstacle", "gone-at-the-check"])
def test_what_is_in_memory_is_loaded_in_place_of_a_planted_one(cubin, monkeypatch, attack):
    cubin.write_bytes(EVIL)
    attack(cubin, monkeypatch)
    assert keep(result_of(cubin, GOOD)) == GOOD


def test_cubin_that_is_gone_is_left_to_torch(cubin):
    cubin.unlink()
    result = result_of(cubin)
    kernel_recipe.keep_cubin(result)
    assert result.kernel.cubin_path == str(cubin)
