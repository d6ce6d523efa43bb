"""A process that runs notices what changes in the keyring; files are written whole, private and over nothing."""

from __future__ import annotations

import os
import threading
import time

import pytest
from helpers import key_cases
from helpers.key_cases import HOUR, MAC, PRIVATE, PUBLIC, directory, put

from safecache.errors import KeyringError
from safecache.signing import key_directory, key_files, keyring


def test_keys_are_read_once_while_nothing_changes(monkeypatch):
    put(MAC)
    first = keyring.current()
    monkeypatch.setattr(key_directory, "_SUFFIX", ".none")
    assert keyring.current() is first


def test_revocation_counts_in_a_process_that_runs():
    put(MAC)
    assert keyring.current().find(MAC.id).revoked is None
    key_directory.add(str(directory()), key_cases.revoked(MAC))
    deadline = time.monotonic() + 10
    while keyring.current().find(MAC.id).revoked is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert keyring.current().find(MAC.id).revoked is not None


def test_change_within_one_tick_of_the_clock_is_seen_a_second_later(monkeypatch):
    path = put(MAC)
    stamp = key_directory.read_stamp(str(path.parent))
    monkeypatch.setattr(key_directory, "read_stamp", lambda directory: stamp)
    monkeypatch.setattr(time, "time_ns", lambda: max(stamp) + 1)
    assert keyring.current().find(MAC.id) is not None
    path.unlink()
    monkeypatch.setattr(time, "time_ns", lambda: max(stamp) + 2 * 10**9)
    assert keyring.current().find(MAC.id) is None


def test_mode_that_is_mended_counts(tmp_path):
    put(MAC)
    directory().chmod(0o777)
    assert keyring.current().signing is None
    directory().chmod(0o700)
    deadline = time.monotonic() + 10
    while keyring.current().signing is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert keyring.current().find(MAC.id) == MAC


def test_trusting_a_key_again_neither_revives_nor_strips_it():
    put(key_cases.revoked(PRIVATE))
    path = key_directory.add(str(directory()), PUBLIC._replace(name="again"))
    key = key_files.read(path, forbidden=0o037)
    assert key.revoked == pytest.approx(time.time() - HOUR, abs=60)
    assert key.name == "again" and key.secret == PRIVATE.secret and key.why_revoked == "the laptop was lost"
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_new_key_file_replaces_nothing(tmp_path):
    key_files.save(str(tmp_path / "key"), MAC)
    with pytest.raises(KeyringError, match="exists already"):
        key_files.save(str(tmp_path / "key"), PUBLIC)
    assert key_files.read(str(tmp_path / "key"), forbidden=0o077) == MAC
    assert os.listdir(tmp_path) == ["key"]


@pytest.mark.parametrize("umask", [0, 0o077], ids=["no-umask", "private-umask"])
def test_key_file_with_a_secret_is_private_from_the_first_moment(tmp_path, monkeypatch, umask):
    seen = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(os.fstat(fd).st_mode & 0o777), real(fd)))
    os.umask(umask)
    for key in (MAC, PRIVATE, PUBLIC):
        key_files.replace(str(tmp_path / "key"), key)
        seen.append((tmp_path / "key").stat().st_mode & 0o777)
    assert seen == [0o600] * 4 + [0o644 & ~umask] * 2


def test_revocation_survives_a_key_that_is_trusted_at_the_same_time(monkeypatch):
    """The other process has read the file, and revoking waits until it has written."""
    put(MAC)
    real = key_files.replace
    revoking = threading.Thread(target=key_directory.add, args=(str(directory()), key_cases.revoked(MAC)))

    def replace(path, key):
        monkeypatch.setattr(key_files, "replace", real)
        revoking.start()
        revoking.join(0.2)
        real(path, key)

    monkeypatch.setattr(key_files, "replace", replace)
    path = key_directory.add(str(directory()), MAC)
    revoking.join()
    assert key_files.read(path, forbidden=0o037).revoked
