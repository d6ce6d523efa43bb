"""A key is believed only where nobody else could put another file in its place: by no directory and no link above it."""

from __future__ import annotations

import os

import pytest
from conftest import needs_root
from helpers import key_cases
from helpers.key_cases import MAC, PUBLIC, directory, put

from safecache.errors import KeyringError
from safecache.fs import ownership
from safecache.signing import key_changes, key_files, keyring

STRANGER = 54321
OPEN = pytest.mark.parametrize("mode", [0o777, 0o770, 0o707], ids="{:04o}".format)


@pytest.fixture
def above(tmp_path):
    """A directory far above a key, as a shared file system has them."""
    path = tmp_path / "above"
    (path / "between" / "keys").mkdir(parents=True, mode=0o755)
    return path


def key_file(above):
    path = above / "between" / "keys" / "key.json"
    key_files.replace(str(path), MAC)
    return path


@OPEN
def test_sealing_key_below_a_directory_that_others_can_write_is_refused(above, settings, mode):
    """They could have put there one that was ours once, and is theirs too by now."""
    settings(SAFECACHE_KEY_FILE=key_file(above))
    above.chmod(mode)
    ring = keyring.current()
    assert ring.signing is None and ring.find(MAC.id) is None
    assert f"others could exchange {above}" in ring.problem and f"{above} has mode {mode:04o}" in ring.problem


def test_sealing_key_below_a_sticky_directory_is_taken(above, settings):
    """As all is that lies below /tmp."""
    settings(SAFECACHE_KEY_FILE=key_file(above))
    above.chmod(0o1777)
    assert keyring.current().signing == MAC


@needs_root
def test_sealing_key_below_a_directory_of_another_user_is_refused(above, settings):
    settings(SAFECACHE_KEY_FILE=key_file(above))
    os.chown(above, STRANGER, -1)
    ring = keyring.current()
    assert ring.signing is None and f"{above} belongs to uid {STRANGER}" in ring.problem


def test_sealing_key_behind_a_link_that_others_could_turn_is_refused(above, settings, tmp_path):
    path = key_file(above)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(path.parent)
    settings(SAFECACHE_KEY_FILE=shared / "link" / path.name)
    assert keyring.current().signing == MAC
    shared.chmod(0o777)
    keyring.renew()
    assert keyring.current().signing is None


def test_secret_that_kubernetes_mounts_is_taken(tmp_path, settings):
    """A tmpfs of mode 1777, and in it links to the directory of this version of the secret."""
    mount = tmp_path / "mount"
    version = mount / "..2026_11_23"
    version.mkdir(parents=True)
    key_files.replace(str(version / "key.json"), MAC)
    (version / "key.json").chmod(0o440)
    (mount / "..data").symlink_to(version.name)
    (mount / "key.json").symlink_to("..data/key.json")
    mount.chmod(0o1777)
    settings(SAFECACHE_KEY_FILE=mount / "key.json")
    assert keyring.current().signing == MAC


def test_directory_that_the_group_of_this_user_alone_can_write_is_no_objection(above, settings, monkeypatch):
    """Where every user has such a group, the umask is 002."""
    settings(SAFECACHE_KEY_FILE=key_file(above))
    above.chmod(0o775)
    monkeypatch.setattr(ownership, "find_own_group", lambda: above.stat().st_gid)
    assert keyring.current().signing == MAC


@OPEN
def test_keyring_below_a_directory_that_others_can_write_is_refused_whole(above, settings, mode):
    """They could put back one in which a key is not revoked yet."""
    settings(SAFECACHE_KEYRING=above / "between" / "keys")
    put(PUBLIC)
    above.chmod(mode)
    ring = keyring.current()
    assert ring.signing is None and ring.find(PUBLIC.id) is None and f"{above} has mode" in ring.problem


@OPEN
def test_own_keyring_and_own_key_below_a_directory_that_others_can_write_are_refused(tmp_path, mode):
    assert keyring.current().signing is not None
    put(PUBLIC)
    (tmp_path / "config").chmod(mode)
    keyring.renew()
    ring = keyring.current()
    assert ring.signing is None and ring.find(PUBLIC.id) is None


def test_revoked_key_does_not_come_back_where_others_have_moved_its_revocation_away(tmp_path, settings, above):
    settings(SAFECACHE_KEY_FILE=key_file(above))
    put(key_cases.revoked(MAC))
    assert keyring.current().signing is None
    (tmp_path / "config").chmod(0o777)
    directory().rename(tmp_path / "elsewhere")
    keyring.renew()
    ring = keyring.current()
    assert ring.signing is None and "others could exchange" in ring.problem


def test_mounted_key_is_taken_by_a_user_whose_home_is_not_private(tmp_path, settings, above):
    """As in OpenShift, where many images have a home of group 0. Nothing of safecache's was ever there."""
    settings(SAFECACHE_KEY_FILE=key_file(above))
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config").chmod(0o777)
    assert keyring.current().signing == MAC


@OPEN
def test_key_that_others_could_exchange_is_not_trusted(above, mode):
    path = key_file(above)
    above.chmod(mode)
    with pytest.raises(KeyringError, match="others could exchange"):
        key_changes.read_candidate(str(path))


@OPEN
def test_key_is_not_put_into_a_keyring_that_others_could_exchange(above, settings, mode):
    settings(SAFECACHE_KEYRING=above / "between" / "keys")
    above.chmod(mode)
    with pytest.raises(KeyringError, match="others could exchange"):
        key_changes.trust(PUBLIC)
    assert os.listdir(above / "between" / "keys") == []
