"""The keyring directory: every key file stands for itself, and what is wrong with one refuses that key by name."""

from __future__ import annotations

import logging
import os
import re

import pytest
from conftest import needs_root
from helpers import key_cases
from helpers.key_cases import BOTH, MAC, PUBLIC, directory, put

from safecache.reporting import events
from safecache.settings import config
from safecache.signing import key_directory, keyring
from safecache.signing.keys import Key

STRANGER = 54321
OTHER = Key.derive(b"o" * 32)
ID = MAC.id.hex()


def assert_refused(path, message):
    """MAC alone is, and for what it is."""
    put(OTHER)
    ring = keyring.current()
    assert ring.find(MAC.id) is None and ring.find(OTHER.id) == OTHER
    (problem,) = ring.problems
    assert message in problem and str(path) in problem
    assert ring.signing is not None


@BOTH
def test_keys_of_the_directory_verify_and_do_not_seal(key):
    put(key)
    ring = keyring.current()
    assert ring.find(key.id) == key and ring.problems == ()
    assert ring.signing is not None and ring.signing.id != key.id


def test_keyring_is_found_where_the_settings_say(settings, tmp_path):
    (tmp_path / "ring").mkdir(0o755)
    settings(SAFECACHE_KEYRING=tmp_path / "ring")
    put(PUBLIC)
    assert os.listdir(tmp_path / "ring") == [f"{PUBLIC.id.hex()}.json"]
    assert keyring.current().find(PUBLIC.id) == PUBLIC
    settings(SAFECACHE_KEYRING="")
    assert keyring.current().find(PUBLIC.id) is None


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600, 0o640], ids="{:04o}".format)
def test_secret_that_no_other_user_reads_is_taken(mode):
    put(MAC, mode=mode)
    assert keyring.current().find(MAC.id) == MAC


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602, 0o620, 0o601, 0o610, 0o666], ids="{:04o}".format)
@BOTH
def test_secret_that_others_could_read_or_replace_is_refused_with_the_remedy(key, mode):
    path = put(key, mode=mode)
    put(OTHER)
    ring = keyring.current()
    assert ring.find(key.id) is None and ring.find(OTHER.id) == OTHER
    assert ring.problems[0].startswith(f"{path} has mode {mode:04o}, open to other users: chmod {mode & ~0o037:04o}")


@pytest.mark.parametrize("mode", [0o444, 0o644, 0o600, 0o755], ids="{:04o}".format)
def test_public_key_may_be_read_by_everybody(mode):
    put(PUBLIC, mode=mode)
    assert keyring.current().find(PUBLIC.id) == PUBLIC


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o622], ids="{:04o}".format)
def test_public_key_that_others_can_write_is_refused(mode):
    path = put(PUBLIC, mode=mode)
    ring = keyring.current()
    assert ring.find(PUBLIC.id) is None and f"{path} has mode {mode:04o}" in ring.problems[0]


@needs_root
@pytest.mark.parametrize("key", [MAC, PUBLIC], ids=["mac", "public"])
def test_key_file_of_another_user_is_refused(key):
    path = put(key)
    os.chown(path, STRANGER, -1)
    ring = keyring.current()
    assert ring.find(key.id) is None and f"{path} belongs to uid {STRANGER}" in ring.problems[0]


@needs_root
def test_key_file_of_root_is_taken_by_any_user(monkeypatch):
    """As secrets are mounted in a container that does not run as root."""
    put(PUBLIC)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert keyring.current().find(PUBLIC.id) == PUBLIC


def test_link_to_a_key_file_is_followed_and_what_it_leads_to_checked(tmp_path):
    """Mounted secrets are links."""
    path = put(MAC)
    target = tmp_path / "target"
    path.rename(target)
    path.symlink_to(target)
    assert keyring.current().find(MAC.id) == MAC
    target.chmod(0o644)
    keyring.renew()
    assert_refused(path, "has mode 0644")


def test_file_whose_content_is_another_key_is_refused():
    path = put(PUBLIC, name=f"{ID}.json")
    assert_refused(path, f"holds key {PUBLIC.id.hex()}, which is not what it is named after")


def test_file_whose_id_is_not_that_of_its_content_is_refused():
    path = put(PUBLIC, name=f"{ID}.json", id=ID)
    assert_refused(path, f"says that it is key {ID}, and its content is that of key {PUBLIC.id.hex()}")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"m" * 64, b"0a" * 32], ids=["empty", "half", "raw", "text", "hex"]
)
def test_damaged_file_is_refused(content):
    path = put(MAC)
    path.write_bytes(content)
    put(OTHER)
    ring = keyring.current()
    assert ring.find(MAC.id) is None and ring.find(OTHER.id) == OTHER and str(path) in ring.problems[0]


def test_truncated_file_is_refused_at_every_length():
    path = put(key_cases.revoked(MAC))
    whole = path.read_bytes()
    for size in range(len(whole.rstrip())):
        path.write_bytes(whole[:size])
        shelf = key_directory.read(str(path.parent), must_exist=True)
        assert shelf.keys == {} and list(shelf.refused) == [MAC.id], size


@pytest.mark.timeout(20, method="signal")  # would hang for ever
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_what_is_no_file_is_refused_at_once(make):
    path = directory() / f"{ID}.json"
    make(path, 0o600)
    assert_refused(path, "")


@pytest.mark.parametrize("name", ["key.json", f"{ID.upper()}.json", "00.json", f"{ID}00.json", f" {ID}.json"])
def test_file_that_is_not_named_after_an_id_is_refused(name):
    path = put(MAC, name=name)
    assert_refused(path, "is not named after the id of a key")


def test_what_is_no_key_file_by_its_name_is_passed_over():
    put(MAC, name="README")
    put(MAC, name=".half.json")
    (directory() / "..data").mkdir()
    ring = keyring.current()
    assert ring.problems == () and set(ring.trusted) == {ring.signing.id}


def test_problem_is_said_once_and_names_the_file(caplog):
    path = put(MAC, mode=0o644)
    for _ in range(3):
        keyring.current()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text and "[key refused]" in caplog.text
    assert events.read_counters() == {"key refused": 1}
    (mode,) = re.findall(r"chmod (\d+)", caplog.text)
    path.chmod(int(mode, 8))
    keyring.renew()
    assert keyring.current().find(MAC.id) == MAC


# --- a directory that cannot be believed


def assert_no_key_is_used(message):
    ring = keyring.current()
    assert ring.signing is None and ring.trusted == {} and message in ring.problem
    assert ring.problems == (ring.problem,)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777], ids="{:04o}".format)
def test_directory_that_others_can_write_is_refused_whole(mode):
    """Whoever can remove a revocation from it could bring any key back, our own included."""
    put(MAC)
    directory().chmod(mode)
    assert_no_key_is_used(f"{config.current().config_home}/safecache/keys has mode {mode:04o}")


def test_directory_in_one_that_others_can_write_is_refused_whole():
    put(MAC)
    directory().parent.chmod(0o777)
    assert_no_key_is_used("safecache has mode 0777")


@needs_root
def test_directory_of_another_user_is_refused_whole():
    put(MAC)
    os.chown(directory(), STRANGER, -1)
    assert_no_key_is_used(f"belongs to uid {STRANGER}")


def test_keyring_that_is_named_and_not_there_leaves_no_key(settings, tmp_path):
    """Its mount is missing, say: nobody knows what it would have revoked."""
    settings(SAFECACHE_KEYRING=tmp_path / "absent")
    assert_no_key_is_used("No such file or directory")


def test_file_in_place_of_the_directory_leaves_no_key(settings, tmp_path):
    (tmp_path / "file").touch()
    settings(SAFECACHE_KEYRING=tmp_path / "file")
    assert_no_key_is_used("is not a directory")


def test_directory_is_not_made_by_looking():
    keyring.current()
    assert os.listdir(os.path.join(config.current().config_home, "safecache")) == ["sealing.key"]
