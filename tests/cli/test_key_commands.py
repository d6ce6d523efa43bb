"""The commands for keys: what they write, what they refuse, and what they say."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import time
from types import SimpleNamespace

import pytest
from helpers import key_cases
from helpers.key_cases import BOTH, MAC, PRIVATE, PUBLIC, directory, put

from safecache.signing import key_directory, key_files, keyring
from safecache.signing.keys import Key

OTHER = Key.derive(b"o" * 32)
PAYLOAD = pickle.dumps({"graph": [1, 2, 3]})


@pytest.fixture
def standard_input(monkeypatch):
    def give(content):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return give


def read(path):
    return key_files.read(str(path), forbidden=0o037)


def mode(path):
    return os.stat(path).st_mode & 0o777


# --- keygen


@pytest.mark.parametrize("options", [[], ["--ed25519"]], ids=["mac", "ed25519"])
def test_new_key_goes_into_the_keyring_and_its_entries_are_taken(run, options):
    said = run("keygen", "--name", "farm", *options)
    key_id, path = said.lines[0].split(" ", 1)
    assert said.code == 0 and path == str(directory() / f"{key_id}.json")
    key = read(path)
    assert key.can_seal and key.name == "farm" and key.created == pytest.approx(time.time(), abs=60)
    assert key.expires is None and key.namespaces == ("*",) and mode(path) == 0o600
    assert keyring.current().find(key.id).public == key.public and said.lines[1].endswith(f"SAFECACHE_KEY_FILE={path}")


def test_keyring_is_made_private(run, tmp_path):
    os.umask(0)
    run("keygen")
    assert mode(tmp_path / "config" / "safecache") == mode(tmp_path / "config" / "safecache" / "keys") == 0o700


def test_no_two_new_keys_are_the_same(run):
    assert len({run("keygen", *options).lines[0] for options in ([], ["--ed25519"]) * 2}) == 4


def test_key_for_a_farm_lies_where_it_was_asked_for_and_its_public_part_apart(run, tmp_path):
    private, public = tmp_path / "farm.json", tmp_path / "farm.pub.json"
    said = run("keygen", "--ed25519", "--out", private, "--public", public, "--namespace", "prod/*", "test")
    assert said.code == 0 and said.lines[0].endswith(f" {private}")
    assert read(private).extract_public() == read(public) and read(private).namespaces == ("prod/*", "test")
    assert (mode(private), mode(public)) == (0o600, 0o644)
    assert not os.path.exists(directory() / said.lines[0].split()[0])


@pytest.mark.parametrize("taken", ["--out", "--public"])
def test_no_file_is_overwritten(run, tmp_path, taken):
    old = tmp_path / "old"
    old.write_text("old")
    said = run("keygen", "--ed25519", taken, old, *(["--out", tmp_path / "new"] if taken == "--public" else []))
    assert said.code == 1 and f"{old} exists already" in said.err and old.read_text() == "old"
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize(("text", "seconds"), [("90d", 90 * 86400), ("1d", 86400)], ids=["90d", "1d"])
def test_days_until_a_key_expires(run, text, seconds):
    path = run("keygen", "--expires", text).lines[0].split(" ", 1)[1]
    assert read(path).expires == pytest.approx(time.time() + seconds, abs=60)


@pytest.mark.parametrize(
    ("text", "expires"),
    [("2100-01-01", 4102444800), ("2100-01-01T00:00:00Z", 4102444800), ("2100-01-01T02:00:00+02:00", 4102444800)],
    ids=["date", "utc", "offset"],
)
def test_date_when_a_key_expires(run, text, expires):
    path = run("keygen", "--expires", text).lines[0].split(" ", 1)[1]
    assert read(path).expires == expires


@pytest.mark.parametrize("text", ["0d", "-1d", "d", "soon", "2020-01-01", "90", "2100-01-01T00:00:00", "9" * 30 + "d"])
def test_end_that_is_none_is_a_usage_error(run, text):
    said = run("keygen", f"--expires={text}")
    assert said.code == 2 and text in said.err and not os.listdir(directory())


def test_mac_key_has_no_public_part_to_write(run, tmp_path):
    assert run("keygen", "--public", tmp_path / "public").code == 2
    assert os.listdir(tmp_path) == []


def test_signature_key_without_the_library_is_refused_with_the_command_that_installs_it(run, monkeypatch):
    key_cases.forget_cryptography(monkeypatch)
    said = run("keygen", "--ed25519")
    assert said.code == 1 and "pip install 'safecache[sign]'" in said.err and not os.listdir(directory())


# --- trust


@pytest.mark.parametrize("key", [MAC, PUBLIC], ids=["mac", "public"])
@pytest.mark.parametrize("way", ["file", "standard input"])
def test_trusted_key_is_copied_with_the_right_mode(run, key, way, tmp_path, standard_input):
    source = tmp_path / "source"
    key_files.save(str(source), key)
    standard_input(source.read_bytes())
    said = run("trust", source if way == "file" else "-")
    path = directory() / f"{key.id.hex()}.json"
    assert said.code == 0 and said.out.startswith(f"{key.id.hex()} {path}: {key.algorithm.value}, trusted")
    assert read(path) == key and mode(path) == (0o600 if key.can_seal else 0o644)
    assert keyring.current().find(key.id) == key


def test_of_a_private_key_the_public_part_alone_is_copied(run, tmp_path):
    key_files.save(str(tmp_path / "private"), PRIVATE)
    assert run("trust", tmp_path / "private").code == 0
    assert read(directory() / f"{PRIVATE.id.hex()}.json") == PUBLIC


def test_name_and_namespaces_can_be_those_of_the_one_who_trusts(run, tmp_path):
    key_files.save(str(tmp_path / "public"), PUBLIC)
    run("trust", tmp_path / "public", "--name", "the farm", "--namespace", "prod/*", "default")
    key = read(directory() / f"{PUBLIC.id.hex()}.json")
    assert (key.name, key.namespaces) == ("the farm", ("prod/*", "default"))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"<html>not found</html>" * 10, b"\0" * 70_000], ids=["empty", "json", "page", "long"]
)
@pytest.mark.parametrize("way", ["file", "standard input"])
def test_what_is_no_key_is_not_trusted(run, content, way, tmp_path, standard_input):
    (tmp_path / "source").write_bytes(content)
    standard_input(content)
    said = run("trust", tmp_path / "source" if way == "file" else "-")
    assert said.code == 1 and said.err.startswith("safecache keys: ") and said.err.count("\n") == 1
    assert os.listdir(directory()) == []


def test_mac_key_that_others_could_read_is_not_trusted(run, tmp_path):
    key_files.save(str(tmp_path / "source"), MAC)
    (tmp_path / "source").chmod(0o644)
    said = run("trust", tmp_path / "source")
    assert said.code == 1 and "has mode 0644" in said.err and os.listdir(directory()) == []


def test_revoked_key_stays_revoked_when_it_is_trusted_again(run, tmp_path):
    put(key_cases.revoked(PUBLIC))
    key_files.save(str(tmp_path / "source"), PUBLIC)
    said = run("trust", tmp_path / "source")
    assert "revoked key" in said.out and keyring.current().find(PUBLIC.id).revoked


def test_revocation_is_handed_on_by_trusting_the_file_of_the_revoked_key(run, tmp_path):
    put(PUBLIC)
    key_files.save(str(tmp_path / "source"), key_cases.revoked(PUBLIC))
    run("trust", tmp_path / "source")
    assert keyring.current().find(PUBLIC.id).why_revoked == "the laptop was lost"


# --- revoke


@BOTH
def test_revoked_key_is_named_by_the_beginning_of_its_id(run, key):
    put(key)
    said = run("revoke", key.id.hex()[:5].upper(), "--reason", "the laptop was lost")
    found = read(directory() / f"{key.id.hex()}.json")
    assert said.code == 0 and f"{key.id.hex()} is revoked" in said.out
    assert found.revoked == pytest.approx(time.time(), abs=60) and found.why_revoked == "the laptop was lost"
    assert keyring.current().find(key.id).revoked


def test_first_revocation_stands(run):
    put(key_cases.revoked(MAC))
    said = run("revoke", MAC.id.hex(), "--reason", "another")
    found = read(directory() / f"{MAC.id.hex()}.json")
    assert said.code == 0 and "was revoked already" in said.out and found.why_revoked == "the laptop was lost"


def test_own_key_is_revoked_and_its_secret_not_copied(run):
    own = keyring.current().signing
    said = run("revoke", own.id.hex())
    assert said.code == 0 and "Nothing is sealed here now: the sealing key" in said.out
    (path,) = directory().glob("*.json")
    assert "secret" not in json.loads(path.read_text()) and keyring.current().signing is None


@pytest.mark.parametrize("prefix", ["", "ffffffff", "no hex"])
def test_id_that_no_key_has_is_an_error(run, prefix):
    put(MAC)
    said = run("revoke", prefix)
    assert said.code == 1 and "no key has an id" in said.err and read(directory() / f"{MAC.id.hex()}.json") == MAC


def test_beginning_that_several_keys_share_is_an_error_that_lists_them(run, monkeypatch):
    twins = [MAC._replace(id=b"\xaa" * 7 + bytes([last])) for last in (1, 2)]
    ring = keyring.Keyring(None, trusted={key.id: key for key in twins})
    monkeypatch.setattr(keyring, "current", lambda tell: ring)
    said = run("revoke", "aaaa")
    assert said.code == 1 and all(key.id.hex() in said.err for key in twins)


def test_damaged_key_cannot_be_revoked_and_says_why(run):
    put(MAC, mode=0o644)
    said = run("revoke", MAC.id.hex())
    assert said.code == 1 and "has mode 0644" in said.err


# --- keys


def test_list_names_every_key_and_what_it_may(run, tmp_path):
    put(PUBLIC._replace(name="farm", namespaces=("prod/*", "x")), name="")
    put(key_cases.expired(OTHER))
    said = run("keys", "--json")
    report = json.loads(said.out)
    rows = {row["id"]: row for row in report["keys"]}
    own = report["sealing"]
    assert said.code == 0 and set(rows) == {own, PUBLIC.id.hex(), OTHER.id.hex()}
    assert (rows[own]["sealing"], rows[own]["can_seal"], rows[own]["state"]) == (True, True, "trusted")
    farm = rows[PUBLIC.id.hex()]
    assert (farm["algorithm"], farm["name"], farm["can_seal"], farm["namespaces"]) == (
        "ed25519",
        "farm",
        False,
        ["prod/*", "x"],
    )
    assert (rows[OTHER.id.hex()]["state"], rows[OTHER.id.hex()]["can_seal"]) == ("expired key", False)


def test_table_has_a_line_for_every_key(run):
    put(PUBLIC._replace(name="farm"))
    put(key_cases.revoked(MAC))
    said = run("keys")
    assert said.code == 0 and len(said.lines) == 4
    assert [line.split()[0] for line in said.lines[1:]] == sorted(line.split()[0] for line in said.lines[1:])
    (line,) = (line for line in said.lines if line.startswith(PUBLIC.id.hex()))
    assert line.split() == [PUBLIC.id.hex(), "ed25519", "farm", "no", "-", "-", "-", "*"]


def test_refused_key_is_listed_with_its_problem_and_exits_1(run, caplog):
    path = put(MAC, mode=0o644)
    said = run("keys")
    assert said.code == 1 and f"Refused: {path} has mode 0644" in said.out
    assert json.loads(run("keys", "--json").out)["problems"][0].startswith(str(path))
    assert caplog.records == []


def test_list_shows_no_secret_and_obeys_no_name(run):
    put(MAC._replace(name="\x1b[2Jevil"))
    for said in (run("keys"), run("keys", "--json")):
        assert MAC.secret.hex() not in said.out and "\x1b" not in said.out


def test_change_of_our_own_counts_at_once_whatever_the_clock_of_the_file_system(run, monkeypatch):
    put(MAC)
    monkeypatch.setattr(key_directory, "read_stamp", lambda directory: (0, 0))
    assert not keyring.current().find(MAC.id).revoked
    run("revoke", MAC.id.hex())
    assert keyring.current().find(MAC.id).revoked
