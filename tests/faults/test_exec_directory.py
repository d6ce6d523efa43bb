"""SAFECACHE_EXEC_DIR: code is loaded from a private copy in the place that a site approves, or the reason is named."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest
from conftest import needs_root
from scenes import load_scenes

pytestmark = pytest.mark.default_release

LOADS = pytest.mark.parametrize("site", ["inductor", "inductor-python", "cutlass", "extension", "operators", "triton"])


@pytest.fixture
def approved(home):
    directory = home.base / "site" / "approved"
    directory.mkdir(mode=0o755, parents=True)
    return directory


def copies(approved):
    return sorted(approved.glob("safecache-*/*/*"))


def load(home, path, approved, site="inductor", **kwargs):
    return home.run(
        load_scenes.load_shared_object, site=site, path=str(path), env={"SAFECACHE_EXEC_DIR": str(approved)}, **kwargs
    )


@needs_root
@LOADS
def test_object_on_a_noexec_mount_is_loaded_from_its_private_copy(home, refused, approved, site):
    if site == "triton":
        pytest.importorskip("triton")
    answer = load(home, refused, approved, site)
    assert answer.ok and answer.result and not answer.warnings, answer
    (copy,) = copies(approved)
    assert copy.read_bytes() == refused.read_bytes() and copy.name == "probe.so"
    for directory in (copy.parent, copy.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert load(home, refused, approved, site).ok and copies(approved) == [copy]


@needs_root
def test_copy_that_was_damaged_is_made_again(home, refused, approved):
    assert load(home, refused, approved).ok
    (copy,) = copies(approved)
    copy.write_bytes(refused.read_bytes()[:100])
    assert load(home, refused, approved).ok
    assert copy.read_bytes() == refused.read_bytes()


def world_writable(approved):
    approved.chmod(0o777)
    return "has mode 0777"


def sticky(approved):
    approved.chmod(0o1777)
    return "has mode 1777"


def foreign(approved):
    os.chown(approved, 12345, 12345)
    return "belongs to uid 12345"


def below_a_writable_one(approved):
    approved.parent.chmod(0o777)
    return f"{approved.parent} has mode 0777"


def missing(approved):
    approved.rmdir()
    return "it is not a directory"


def prepared_by_others(approved):
    own = approved / f"safecache-{os.geteuid()}"
    own.mkdir()
    own.chmod(0o755)
    return "with mode 0700"


@needs_root
@pytest.mark.parametrize("spoil", [world_writable, sticky, foreign, below_a_writable_one, missing, prepared_by_others])
def test_unsafe_directory_is_refused_with_the_reason(home, shared_object, approved, spoil):
    reason = spoil(approved)
    answer = load(home, shared_object, approved)
    assert answer.ok and len(answer.warnings) == 1 and not copies(approved), answer
    assert reason in answer.warnings[0] and str(approved) in answer.warnings[0], answer
    strict = load(home, shared_object, approved, strict=True)
    assert strict.error == "ExecutionError" and reason in strict.messages[0], strict
    private = home.base / "private"
    private.mkdir(mode=0o700)
    moved = load(home, shared_object, private)
    assert moved.ok and not moved.warnings and copies(private), moved


@needs_root
def test_directory_that_is_itself_noexec_is_refused(home, refused):
    point = refused.parent
    answer = load(home, refused, point)
    assert answer.error == "OSError" and len(answer.warnings) == 1, answer
    assert (
        f"SAFECACHE_EXEC_DIR={point} [unusable exec directory]: it is on {point} (tmpfs: rw,noexec"
        in answer.warnings[0]
    )


@needs_root
def test_object_that_others_could_have_written_is_not_copied(home, refused, approved):
    refused.chmod(0o666)
    answer = load(home, refused, approved, "extension")
    assert answer.error == "ImportError" and not copies(approved), answer
    assert "others could have written it" in answer.warnings[0] and "has mode 0666" in answer.warnings[0]
    strict = load(home, refused, approved, "extension", strict=True)
    assert strict.error == "EntryRefusedError" and not copies(approved), strict


def test_object_that_is_missing_fails_as_in_stock(home, approved):
    gone = home.base / "gone.so"
    stock = home.run(load_scenes.load_shared_object, site="inductor", path=str(gone), stock=True)
    answer = load(home, gone, approved)
    assert stock.error == answer.error == "OSError" and answer.messages == stock.messages, answer


@needs_root
def test_probe_of_vector_instructions_runs_from_there(home, approved, zygote):
    if tuple(map(int, zygote.torch.split(".")[:2])) < (2, 13):
        pytest.skip("older torch probes without a function to hook")
    home.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=755", "none", str(home.cache)], check=True)
    try:
        found = home.run(load_scenes.find_vector_instructions, env={"SAFECACHE_EXEC_DIR": str(approved)})
    finally:
        subprocess.run(["umount", str(home.cache)], check=True)
    assert found.result is True and not found.warnings, found
