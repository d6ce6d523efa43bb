"""A key file of the user's: taken where only he and root can read or write it, and refused with the remedy elsewhere."""

from __future__ import annotations

import os

import pytest
from conftest import needs_root

from safecache.errors import KeyringError
from safecache.signing import keyring

MATERIAL = "m" * 32
STRANGER = 54321


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "mounted.key"
    path.write_text(MATERIAL)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("allowed", [0o400, 0o440, 0o600, 0o640], ids="{:04o}".format)
def test_key_file_with_a_safe_mode_is_taken(key_file, allowed):
    key_file.chmod(allowed)
    ring = keyring.load(str(key_file), None)
    assert ring.signing == keyring.Key.derive(MATERIAL.encode()) and not ring.fresh


@pytest.mark.parametrize(
    ("open_mode", "remedy"),
    [(0o644, "0640"), (0o666, "0640"), (0o660, "0640"), (0o604, "0600"), (0o602, "0600"), (0o601, "0600")],
    ids=["0644", "0666", "0660", "0604", "0602", "0601"],
)
def test_key_file_open_to_others_is_refused_with_the_remedy(key_file, open_mode, remedy):
    key_file.chmod(open_mode)
    with pytest.raises(KeyringError, match=f"{key_file} has mode {open_mode:04o}.*chmod {remedy}.*defaultMode: 0440"):
        keyring.load(str(key_file), None)


@needs_root
@pytest.mark.parametrize("shared", [0, 1], ids=["own-cache", "shared-cache"])
def test_key_file_of_another_user_is_refused(key_file, settings, shared):
    settings(SAFECACHE_SHARED=shared)
    os.chown(key_file, STRANGER, -1)
    with pytest.raises(KeyringError, match=f"{key_file} belongs to uid {STRANGER}"):
        keyring.load(str(key_file), None)


@needs_root
def test_key_file_of_root_is_taken_by_any_user(key_file, monkeypatch):
    """As secrets are mounted in a container that does not run as root."""
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert keyring.load(str(key_file), None).signing is not None


@pytest.mark.parametrize("size", [0, 1, 31])
def test_key_file_that_is_too_short_is_refused(key_file, size):
    key_file.write_text("m" * size)
    with pytest.raises(KeyringError, match=f"{key_file} holds {size} bytes; it needs at least 32"):
        keyring.load(str(key_file), None)


def test_newline_at_the_end_of_a_key_file_does_not_matter(key_file):
    key_file.write_text(MATERIAL + "\n")
    assert keyring.load(str(key_file), None).signing == keyring.Key.derive(MATERIAL.encode())


@pytest.mark.parametrize("edge", [b"\n" + b"m" * 31, b"m" * 31 + b" "], ids=["first", "last"])
def test_key_file_of_32_raw_bytes_is_taken_whatever_they_are(key_file, edge):
    key_file.write_bytes(edge)
    assert keyring.load(str(key_file), None).signing is not None


@pytest.mark.timeout(20, method="signal")  # would hang for ever
def test_fifo_in_place_of_a_key_file_is_refused_at_once(key_file):
    key_file.unlink()
    os.mkfifo(key_file, 0o600)
    with pytest.raises(KeyringError, match=f"{key_file} is not a regular file"):
        keyring.load(str(key_file), None)


def test_directory_in_place_of_a_key_file_is_refused_by_name(tmp_path):
    with pytest.raises((KeyringError, OSError), match=str(tmp_path)):
        keyring.load(str(tmp_path), None)
