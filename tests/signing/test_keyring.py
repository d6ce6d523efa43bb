"""The key of a user: made on first use, whole and private, and refused where others could read or replace it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from conftest import needs_root

from safecache.errors import KeyringError
from safecache.signing import keyring

STRANGER = 54321


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_hard_links(request, monkeypatch):
    def link(source, destination, **kwargs):
        raise OSError(request.param, os.strerror(request.param), source)

    monkeypatch.setattr(os, "link", link)


def test_key_made_on_first_use_is_private_to_the_user(tmp_path):
    os.umask(0)
    ring = keyring.load(None, str(tmp_path))
    assert ring.fresh and ring.signing is not None
    assert mode(tmp_path / "safecache") == 0o700
    assert mode(tmp_path / "safecache" / "sealing.key") == 0o600
    assert os.listdir(tmp_path / "safecache") == ["sealing.key"]


def test_second_use_finds_the_same_key(tmp_path):
    first, second = (keyring.load(None, str(tmp_path)) for _ in range(2))
    assert second[:3] == (first.signing, False, "")


def test_two_users_get_different_keys(tmp_path):
    one, other = (keyring.load(None, str(tmp_path / name)).signing for name in ("one", "other"))
    assert one.secret != other.secret and one.id != other.id


def test_missing_config_home_is_made(tmp_path):
    assert keyring.load(None, str(tmp_path / "not" / "there")).fresh


@pytest.mark.parametrize(
    "no_hard_links",
    [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK],
    indirect=True,
    ids=errno.errorcode.get,
)
def test_key_is_made_where_the_file_system_has_no_hard_links(tmp_path, no_hard_links):
    ring = keyring.load(None, str(tmp_path))
    assert ring.fresh
    assert mode(tmp_path / "safecache" / "sealing.key") == 0o600
    assert keyring.load(None, str(tmp_path))[:3] == (ring.signing, False, "")
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("no_hard_links", [errno.EIO], indirect=True, ids=["EIO"])
def test_failed_link_raises_and_leaves_nothing_behind(tmp_path, no_hard_links):
    with pytest.raises(OSError, match="Input/output error"):
        keyring.load(None, str(tmp_path))
    assert os.listdir(tmp_path / "safecache") == []


def test_full_disk_leaves_no_half_key(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        keyring.load(None, str(tmp_path))
    assert os.listdir(tmp_path / "safecache") == []


@pytest.mark.parametrize(
    ("place", "mode", "remedy"),
    [("safecache", 0o770, "0750"), ("safecache", 0o707, "0705"), ("safecache/sealing.key", 0o640, "0600")],
    ids=["group-writable-directory", "world-writable-directory", "group-readable-key"],
)
def test_own_key_that_others_could_read_or_replace_is_refused(tmp_path, place, mode, remedy):
    keyring.load(None, str(tmp_path))
    (tmp_path / place).chmod(mode)
    with pytest.raises(KeyringError, match=f"{tmp_path / place} has mode {mode:04o}.*chmod {remedy}"):
        keyring.load(None, str(tmp_path))


@needs_root
def test_key_directory_of_another_user_is_refused(tmp_path):
    keyring.load(None, str(tmp_path))
    os.chown(tmp_path / "safecache", STRANGER, -1)
    with pytest.raises(KeyringError, match=f"belongs to uid {STRANGER}"):
        keyring.load(None, str(tmp_path))


def test_process_without_a_key_carries_on_and_knows_why(settings, tmp_path):
    settings(SAFECACHE_KEY_FILE=tmp_path / "absent")
    ring = keyring.current()
    assert ring.signing is None and "No such file" in ring.problem and str(tmp_path / "absent") in ring.problem
    assert ring.find(bytes(8)) is None


def test_user_without_a_home_has_no_key(monkeypatch, settings):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    settings(HOME="relative")
    assert keyring.current()[:3] == (None, False, "this user has no home directory to keep a key in")


def test_keys_follow_the_settings_of_now(settings, tmp_path):
    path = tmp_path / "mounted.key"
    path.write_text("m" * 32)
    path.chmod(0o600)
    own = keyring.current()
    settings(SAFECACHE_KEY_FILE=path)
    assert keyring.current().signing == keyring.Key.derive(b"m" * 32)
    settings(SAFECACHE_KEY_FILE="")
    assert keyring.current() is own and own.fresh


def test_only_a_held_key_is_found():
    key, stranger = keyring.Key.derive(b"a"), keyring.Key.derive(b"b")
    assert keyring.Keyring(key).find(key.id) is key
    assert keyring.Keyring(key).find(stranger.id) is None


def test_secret_is_not_shown():
    key = keyring.Key.derive(b"secret material")
    shown = repr(key) + str(keyring.Keyring(key))
    assert key.id.hex() in shown
    assert repr(key.secret)[2:-1] not in shown and key.secret.hex() not in shown
