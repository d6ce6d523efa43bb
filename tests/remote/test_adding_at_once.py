"""Hosts that add entries to one key at the same time: none replaces what another has just added."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading

import pytest
from conftest import SOURCE

from safecache import testing
from safecache.remote import client, sender
from safecache.store import bundles

from .conftest import make_bucket
from .test_parcels import entry_bundle, sealed_entry
from .test_sending import written

pytest.importorskip("zstandard")

EACH = 6
# A host that adds its entries one by one, as soon as all are ready.
HOST = """
import sys
from pathlib import Path
from safecache.places import layout
from safecache.remote import client, sender
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, provenance, seal
from safecache.store import entry_files

base, each = sys.argv[1], int(sys.argv[2])
bundle = Ref(Kind.FX_ENTRY, "f" + "a" * 51, base)
signing, built = keyring.current().signing, provenance.make_statement(Kind.FX_ENTRY)
remote = client.get_background()
remote.find_sizes(["begin"])
print("ready", flush=True)
sys.stdin.readline()
for number in range(each):
    content = seal.attach(f"{base} {number}".encode(), Kind.FX_ENTRY, "f" + "a" * 51, signing, built)
    entry_files.publish(bundle.name_file(layout.name_entry(content)).path, content, base)
    sent = sender.send(remote, bundle)
    assert not sent.why_not, sent
"""


def add_at_once(tmp_path, hosts=2, **env):
    """How many of all the entries that so many hosts have added are there in the end."""
    environment = os.environ | testing.isolated(str(tmp_path / "home"))
    environment |= {"PYTHONPATH": str(SOURCE), "SAFECACHE_REMOTE_TIMEOUT": "20"} | env
    first = [sys.executable, "-c", "from safecache.signing import keyring; assert keyring.current().signing"]
    subprocess.run(first, env=environment, check=True)
    commands = [[sys.executable, "-c", HOST, str(tmp_path / f"host{number}"), str(EACH)] for number in range(hosts)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=environment, **pipes) for command in commands]
    assert [process.stdout.readline() for process in running] == ["ready\n"] * hosts
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * hosts, said
    count = (
        "import sys\n"
        "from safecache.remote import client, parcels, stores\n"
        "from safecache.reporting.kinds import Kind\n"
        "name = parcels.name_object(Kind.FX_ENTRY, 'f' + 'a' * 51)\n"
        "content = client.get_background().read_unverified([stores.make_prefix() + name])[stores.make_prefix() + name]\n"
        "print(len(parcels.unpack_unverified(content, name, 1 << 30).files))"
    )
    done = subprocess.run([sys.executable, "-c", count], env=environment, check=True, capture_output=True, text=True)
    return int(done.stdout)


def test_no_entry_is_lost_in_redis(tmp_path, redis_server):
    assert add_at_once(tmp_path, hosts=4, SAFECACHE_REMOTE=redis_server.url) == 4 * EACH


def test_no_entry_is_lost_in_an_object_store(tmp_path, s3):
    make_bucket("at-once", s3)
    assert add_at_once(tmp_path, **s3 | {"SAFECACHE_REMOTE": "s3://at-once/x"}) == 2 * EACH


class _Plain(http.server.BaseHTTPRequestHandler):
    """Keeps objects, and knows no conditions: how stores that speak S3 say so."""

    protocol_version = "HTTP/1.1"

    def _answer(self, status, content=b"", size=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if size is None else size))
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 15:00:00 GMT")
        self.send_header("ETag", '"same"')
        if status == 206:
            whole = len(self.server.kept[self.path])
            self.send_header("Content-Range", f"bytes {whole - len(content)}-{whole - 1}/{whole}")
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["If-Match"] or self.headers["If-None-Match"]:
            self.server.refused += 1
            return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        self.server.kept[self.path] = content
        return self._answer(200)

    def do_GET(self):
        content = self.server.kept.get(self.path)
        if content is None:
            return self._answer(404)
        wanted = self.headers["Range"]
        if wanted is None:
            return self._answer(200, content)
        return self._answer(206, content[int(wanted.partition("=")[2].partition("-")[0]) :])

    def do_HEAD(self):
        content = self.server.kept.get(self.path)
        return self._answer(404) if content is None else self._answer(200, size=len(content))

    def log_message(self, *args):
        pass


@pytest.fixture
def plain(monkeypatch):
    pytest.importorskip("obstore")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Plain)
    server.kept, server.refused = {}, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "somebody")
    yield server
    server.shutdown()
    server.server_close()


def add_two(tmp_path):
    """The entries that are there once two hosts have added one each, one after the other."""
    for number in range(2):
        bundle = entry_bundle(tmp_path / f"host{number}")
        written(bundle, sealed_entry(b"entry %d" % number))
        assert sender.send(client.get_background(), bundle).size
    third = entry_bundle(tmp_path / "third")
    assert bundles.fetch(third)
    return len(third.list_names())


def test_store_that_knows_no_conditions_is_written_all_the_same(plain, settings, tmp_path, caplog):
    settings(SAFECACHE_REMOTE="s3://bucket/x", SAFECACHE_REMOTE_TIMEOUT="20")
    assert add_two(tmp_path) == 2 and plain.refused == 2 and not caplog.text


def test_directory_is_written_all_the_same(settings, tmp_path, caplog):
    pytest.importorskip("obstore")
    settings(SAFECACHE_REMOTE=f"file://{tmp_path}")
    assert add_two(tmp_path) == 2 and not caplog.text


def test_user_with_rights_to_read_and_write_alone(new_redis, settings, tmp_path, caplog):
    server = new_redis()
    server.client().execute_command("ACL", "SETUSER", "cache", "on", ">secret", "~*", "+@read", "+@write", "+client")
    settings(SAFECACHE_REMOTE=server.url.replace("//", "//cache:secret@"), SAFECACHE_REMOTE_TIMEOUT="20")
    assert add_two(tmp_path) == 2 and not caplog.text


def test_what_others_keep_changing_is_given_up(redis_server, settings, tmp_path, monkeypatch):
    settings(SAFECACHE_REMOTE=redis_server.url, SAFECACHE_REMOTE_TIMEOUT="20")
    read, tries = client.Client.read_unverified, []

    def changed(self, names):
        """Somebody adds to it each time, just after it was read."""
        found = read(self, names)
        redis_server.client().set(names[0], f"changed {len(tries)}")
        tries.append(names)
        return found

    monkeypatch.setattr(client.Client, "read_unverified", changed)
    bundle = entry_bundle(tmp_path)
    written(bundle, sealed_entry())
    sent = sender.send(client.get_background(), bundle)
    assert sent.why_not and not sent.is_final and 2 < len(tries) < 100
