"""Azure's store, as Azurite emulates it: SAFECACHE_TEST_AZURITE names its program azurite-blob (npm install azurite)."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
import subprocess
import urllib.request

import pytest

from safecache.remote import client

from .conftest import await_port, free_port
from .test_adding_at_once import add_two

pytest.importorskip("obstore")
pytest.importorskip("zstandard")
AZURITE = os.environ.get("SAFECACHE_TEST_AZURITE")
pytestmark = pytest.mark.skipif(not AZURITE, reason="SAFECACHE_TEST_AZURITE names no azurite-blob")
# The account and the key that are known to be every emulator's.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def make_container(port, name):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version = "2021-08-06"
    stated = f"x-ms-date:{now}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), f"PUT{12 * chr(10)}{stated}".encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": now,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    url = f"http://127.0.0.1:{port}/{ACCOUNT}/{name}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)) as answer:
        assert answer.status == 201


@pytest.fixture
def container(tmp_path, monkeypatch):
    """The URL of a container of its own."""
    port = free_port()
    options = ["--blobPort", str(port), "--silent", "--skipApiVersionCheck", "--location", str(tmp_path / "azurite")]
    process = subprocess.Popen([AZURITE, *options], stdout=subprocess.DEVNULL)
    await_port(port, process)
    make_container(port, "kernels")
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{port}")
    yield "az://kernels/of/ours"
    process.terminate()
    process.wait(20)


def test_all_that_is_asked_of_a_store(container, settings):
    settings(SAFECACHE_REMOTE=container, SAFECACHE_REMOTE_TIMEOUT="20")
    remote = client.get_background()
    remote.write("a/1", b"content" * 100)
    assert remote.read_unverified(["a/1", "a/2"]) == {"a/1": b"content" * 100}
    assert remote.find_sizes(["a/1", "a/2"]) == {"a/1": 700} and remote.read_unverified_starts(["a/1", "a/2"], 7) == {
        "a/1": b"content"
    }
    assert not remote.replace("a/1", b"another", None)
    assert not remote.replace("a/1", b"another", b"content" * 99 + b"CONTENT")
    assert remote.replace("a/1", b"another", b"content" * 100) and remote.replace("a/2", b"new", None)
    assert sorted((found.name, found.size) for found in remote.list_names("a/")) == [("a/1", 7), ("a/2", 3)]
    remote.remove("a/1")
    assert not remote.read_unverified(["a/1"])


def test_hosts_add_to_one_key(container, settings, tmp_path, caplog):
    settings(SAFECACHE_REMOTE=container, SAFECACHE_REMOTE_TIMEOUT="20")
    assert add_two(tmp_path) == 2 and not caplog.text
