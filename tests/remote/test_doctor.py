"""`safecache doctor` tries the remote: whether it answers, may be written, and holds what could be used here."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time

import pytest
from helpers import filled, in_process
from helpers.message_form import check_form, to_row

import safecache
from safecache.doctor import contents
from safecache.remote import client, directory_store, redis_store, stores
from safecache.settings import config
from safecache.signing import keyring

from .conftest import free_port

run = in_process.run

pytest.importorskip("zstandard")
pytest.importorskip("redis")


def findings():
    found = list(contents.check_remote({}))
    check_form(map(to_row, found))
    return {each.code: each for each in found}


@pytest.fixture
def url(redis_server, settings):
    settings(SAFECACHE_REMOTE=redis_server.url)
    keyring.current()  # makes a key
    return redis_server.url


def test_without_a_remote_nothing_is_found():
    assert findings() == {}


def test_remote_that_works(url, redis_server):
    found = findings()
    assert {code: each.severity for code, each in found.items()} == {"remote": "ok", "remote-writable": "ok"}
    assert url in found["remote"].evidence and " ms" in found["remote"].evidence
    assert redis_server.client().dbsize() == 0


def test_directory_that_works(settings, tmp_path):
    pytest.importorskip("obstore")
    (tmp_path / "remote").mkdir()
    settings(SAFECACHE_REMOTE=f"file://{tmp_path / 'remote'}")
    keyring.current()
    assert set(findings()) == {"remote", "remote-writable"}
    assert not [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]


def test_what_is_there_verifies(url, run, tmp_path):
    run("push", filled.fill(tmp_path / "cache"))
    assert findings()["remote-key"].severity == "ok"


def test_sealed_by_a_key_that_is_not_trusted(url, run, tmp_path, settings):
    run("push", filled.fill(tmp_path / "cache"))
    key = keyring.current().signing
    settings(XDG_CONFIG_HOME=tmp_path / "elsewhere")
    safecache.reset()
    keyring.current()
    found = findings()["remote-unknown-key"]
    assert found.severity == "warning" and key.id.hex() in found.evidence and "safecache keys trust" in found.remedy


def test_host_without_a_key(url, run, tmp_path, settings):
    run("push", filled.fill(tmp_path / "cache"))
    settings(XDG_CONFIG_HOME=tmp_path / "elsewhere")
    safecache.reset()
    assert findings()["remote-no-key"].severity == "warning"
    assert not (tmp_path / "elsewhere").exists()


def test_what_somebody_has_put_there(url, run, tmp_path):
    run("push", filled.fill(tmp_path / "cache"))
    there = client.get_background()
    for each in list(there.list_names(stores.make_prefix())):
        there.write(each.name, b"no parcel")
    found = findings()["remote-refused"]
    assert "7 of 7" in found.evidence and "no seal" in found.evidence


def test_remote_that_may_not_be_listed(url, monkeypatch):
    def refuse(store, below):
        raise OSError("no right to list")

    monkeypatch.setattr(redis_store.RedisStore, "list_names", refuse)
    found = findings()["remote-not-listed"]
    assert found.severity == "info" and "no right to list" in found.evidence


@pytest.mark.parametrize("extra", ["redis", "zstandard", "obstore"])
def test_library_that_is_not_installed(settings, monkeypatch, extra):
    monkeypatch.setitem(sys.modules, extra, None)
    settings(SAFECACHE_REMOTE="s3://bucket/x" if extra == "obstore" else "redis://127.0.0.1:1/0")
    [found] = findings().values()
    wanted = "pip install 'safecache[object]'" if extra == "obstore" else "pip install 'safecache[redis]'"
    assert (found.code, found.severity, found.remedy) == ("remote-library", "error", wanted)
    assert extra in found.evidence


def test_nobody_answers(settings):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings(SAFECACHE_REMOTE=f"redis://user:s3cret@127.0.0.1:{port}/0")
    [found] = findings().values()
    assert (found.code, found.severity) == ("remote-unreachable", "error") and found.remedy
    assert "Connection refused" in found.evidence and "s3cret" not in str(found)


def test_silent_server(settings, monkeypatch):
    monkeypatch.setattr(contents, "_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings(SAFECACHE_REMOTE=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        [found] = findings().values()
    assert found.code == "remote-unreachable" and "Timeout" in found.evidence


def test_password_that_is_wrong(new_redis, settings, tmp_path):
    server = new_redis("--requirepass", "the-right-one")
    settings(SAFECACHE_REMOTE=server.url)
    [found] = findings().values()
    assert found.code == "remote-unreachable" and "password_file=" in found.remedy
    (tmp_path / "password").write_text("the-right-one\n")
    settings(SAFECACHE_REMOTE_PASSWORD_FILE=tmp_path / "password")
    keyring.current()
    assert findings()["remote-writable"].severity == "ok"


def test_user_who_may_only_read(new_redis, settings):
    server = new_redis("--user", "reader", "on", ">pw", "~*", "+@read", "+@connection", "+time")
    settings(SAFECACHE_REMOTE=server.url.replace("redis://", "redis://reader:pw@"))
    keyring.current()
    found = findings()
    assert found["remote"].severity == "ok"
    assert found["remote-not-writable"].severity == "warning"
    assert "read_only=1" in found["remote-not-writable"].remedy
    settings(SAFECACHE_REMOTE_READ_ONLY="1")
    assert findings()["remote-read-only"].severity == "info"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_certificate_of_a_stranger(new_redis, settings, tmp_path):
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", free_port()
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, *subject]
    subprocess.run(make, check=True, capture_output=True)
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    new_redis("--tls-port", str(port), *files, "--tls-auth-clients", "no")
    settings(SAFECACHE_REMOTE=f"rediss://127.0.0.1:{port}/0")
    found = findings()["remote-unreachable"]
    assert "certificate" in found.evidence.lower() and "ssl_ca_certs" in found.remedy
    settings(SAFECACHE_REMOTE=f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
    keyring.current()
    assert set(findings()) == {"remote", "remote-writable"}


@pytest.mark.parametrize(("password", "severity"), [("", "info"), ("user:s3cret@", "warning")])
def test_without_tls_to_another_host(settings, monkeypatch, password, severity):
    settings(SAFECACHE_REMOTE=f"redis://{password}cache.example:6379/0")

    def refused(url, terms):
        raise OSError("somewhere else")

    monkeypatch.setattr(stores, "make_store", refused)
    found = findings()["remote-without-tls"]
    assert found.severity == severity and "s3cret" not in str(found)


def test_clock_that_is_wrong(url, monkeypatch):
    monkeypatch.setattr(redis_store.RedisStore, "read_clock", lambda store: time.time() + 300)
    assert "300 s ahead of" in findings()["remote-clock"].evidence


def test_clock_that_what_was_written_tells(settings, tmp_path, monkeypatch):
    stock = directory_store.DirectoryStore.list_names
    names = lambda store, below: (each._replace(modified=each.modified - 300) for each in stock(store, below))  # noqa: E731
    monkeypatch.setattr(directory_store.DirectoryStore, "list_names", names)
    settings(SAFECACHE_REMOTE=f"file://{tmp_path}")
    keyring.current()
    assert "300 s behind" in findings()["remote-clock"].evidence


@pytest.mark.parametrize(("seconds", "code"), [(0.3, "remote-slow"), (1.5, "remote-too-slow")])
def test_slow_answers(url, monkeypatch, seconds, code):
    monkeypatch.setattr(contents, "_measure_times", lambda store: (2 * seconds, seconds))
    found = findings()[code]
    assert f"{1000 * seconds:.1f} ms" in found.evidence


def test_command_tells_of_it(url, run):
    said = json.loads(run("doctor", "--json", "--no-import").out)
    assert "remote-writable" in {found["code"] for found in said["findings"]}
    assert config.current().remote == url
