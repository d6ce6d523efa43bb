"""A noexec mount is told from every other reason why a shared object does not load, and named as the kernel has it."""

from __future__ import annotations

import subprocess

import pytest
from conftest import needs_root

from safecache import load_errors
from safecache.fs import mounts

REFUSED = "failed to map segment from shared object"


@pytest.fixture
def noexec(tmp_path):
    """A directory that no code can be loaded from, with a name that mountinfo must escape."""
    point = tmp_path / "no exec"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", str(point)], check=True)
    yield point
    subprocess.run(["umount", str(point)], check=True)


@needs_root
@pytest.mark.parametrize("kind", [OSError, ImportError])
def test_refused_load_is_explained_by_an_error_of_the_same_type(noexec, kind, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    original = kind(f"{noexec}/deep/kernel.so: {REFUSED}")
    error = load_errors.explain_error(original, "TRITON_CACHE_DIR")
    assert type(error) is kind
    text = str(error)
    assert f"{noexec}/deep/kernel.so" in text and f"{noexec} (tmpfs: rw,noexec" in text
    assert f"export TRITON_CACHE_DIR={tmp_path}/" in text


@needs_root
def test_place_that_is_offered_was_tried(noexec, monkeypatch):
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(noexec))
    error = load_errors.explain_error(OSError(f"{noexec}/kernel.so: {REFUSED}"), "TRITON_CACHE_DIR")
    assert f"export TRITON_CACHE_DIR={noexec}" not in str(error)


@needs_root
def test_error_keeps_the_names_of_an_import_error(noexec):
    original = ImportError(f"{noexec}/kernel.so: {REFUSED}", name="kernel", path=f"{noexec}/kernel.so")
    error = load_errors.explain_error(original, "TRITON_CACHE_DIR")
    assert (error.name, error.path) == ("kernel", original.path)


@needs_root
def test_error_without_a_text_of_its_own_is_left_alone(noexec):
    class Odd(OSError):
        def __init__(self, first, second):
            super().__init__(first)

    assert load_errors.explain_error(Odd(f"{noexec}/kernel.so: {REFUSED}", 2), "TRITON_CACHE_DIR") is None


@pytest.mark.parametrize("text", ["undefined symbol: f", "file too short", f"/proc/none.so: {REFUSED}", REFUSED])
def test_any_other_failure_is_not_ours(text):
    assert load_errors.explain_error(OSError(text), "TRITON_CACHE_DIR") is None


def test_error_that_is_not_explained_is_the_identical_one():
    raised = OSError("undefined symbol: f")

    def load():
        raise raised

    with pytest.raises(OSError, match="undefined") as caught:
        load_errors.explain_load(load, (), {}, "TRITON_CACHE_DIR")
    assert caught.value is raised and raised.__cause__ is None and raised.__context__ is None


@needs_root
def test_mount_is_the_one_that_hides_the_others(noexec):
    assert mounts.is_noexec(str(noexec)) and not mounts.can_execute_from(str(noexec))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nodev,size=1m", "none", str(noexec)], check=True)
    try:
        mount = mounts.find_mount(f"{noexec}/missing/file")
        assert mount.point == str(noexec) and "noexec" not in mount.options and "nodev" in mount.options
        assert mounts.can_execute_from(str(noexec))
    finally:
        subprocess.run(["umount", str(noexec)], check=True)


def test_mounts_that_cannot_be_read_are_unknown(monkeypatch):
    monkeypatch.setattr(mounts, "_MOUNTINFO", "/nonexistent")
    assert mounts.find_mount("/") is None
