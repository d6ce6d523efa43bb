"""A server that sends more than was asked for, or for longer: no more is received, and nobody waits for the end."""

from __future__ import annotations

import contextlib
import http.server
import socketserver
import threading
import time

import pytest

from safecache.errors import CacheReadError
from safecache.places.refs import Ref
from safecache.ports import Requested
from safecache.remote import client, exchange, parcels, redis_store, stores, tier
from safecache.remote.stores import Oversized, Terms
from safecache.reporting import waits
from safecache.reporting.kinds import Kind
from safecache.store import bundles

MOST = 64 << 10
TERMS = Terms(2.0, 2.0, MOST)
# What a whole test may take on a busy machine, where without bounds it would never end.
LIMIT = 60.0


class _Endless(http.server.BaseHTTPRequestHandler):
    """Answers with a body without end, in chunks; ``sent``: how much of it was taken."""

    protocol_version = "HTTP/1.1"
    sent = 0

    def do_GET(self):
        self.send_response(206 if self.headers.get("Range") else 200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Content-Length", "100")
        if self.headers.get("Range"):
            self.send_header("Content-Range", "bytes 0-99/100")
        self.send_header("Last-Modified", "Wed, 25 Nov 2026 00:00:00 GMT")
        self.end_headers()
        piece = b"x" * MOST
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                type(self).sent += len(piece)

    def log_message(self, *args):
        pass


@pytest.fixture
def endless():
    pytest.importorskip("obstore")
    _Endless.sent = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield stores.make_store(f"http://127.0.0.1:{server.server_port}", TERMS)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("ask", ["read", "starts"])
def test_body_without_end_is_received_no_further(endless, ask):
    began = time.monotonic()
    found = endless.read_unverified(["a"]) if ask == "read" else endless.read_unverified_starts(["a"], 100)
    assert isinstance(found["a"], Oversized) if ask == "read" else found == {"a": b"x" * 100}
    assert time.monotonic() - began < LIMIT
    # What the buffers of the two ends have, besides: Linux lets each grow to some megabytes.
    assert _Endless.sent < 1024 * MOST


class _Redis(socketserver.ThreadingTCPServer):
    """A server that speaks enough of Redis' protocol to answer each command as ``how`` says."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, how) -> None:
        self.how = how
        super().__init__(("127.0.0.1", 0), _Session)
        self.url = f"redis://127.0.0.1:{self.server_address[1]}/0"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Session(socketserver.StreamRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError, ValueError):
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(size + 2)[:-2])
                if words[0] == b"HELLO":
                    self.wfile.write(b"%1\r\n$5\r\nproto\r\n:3\r\n")
                elif words[0] in (b"CLIENT", b"SELECT"):
                    self.wfile.write(b"+OK\r\n")
                else:
                    self.server.how(self.wfile, words)


@pytest.fixture
def redis_like():
    pytest.importorskip("redis")
    servers = []

    def start(how):
        servers.append(_Redis(how))
        return stores.make_store(servers[-1].url, TERMS)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def drip(to, words):
    to.write(b"$60000\r\n")
    while True:
        to.write(b"x")
        time.sleep(0.2)


def test_answer_that_comes_by_drops_is_not_awaited(redis_like):
    """Each before a connection would be given up."""
    store, began = redis_like(drip), time.monotonic()
    with pytest.raises(Exception, match="no whole answer"):
        store.read_unverified(["a"])
    assert time.monotonic() - began < LIMIT


def test_list_of_names_without_end_is_given_up(redis_like, monkeypatch):
    monkeypatch.setattr(redis_store, "_LISTLESS", 1.0)
    numbers = iter(range(1, 1 << 30))

    def scan(to, words):
        cursor = b"%d" % next(numbers)
        to.write(b"*2\r\n$%d\r\n%s\r\n*0\r\n" % (len(cursor), cursor))

    with pytest.raises(Exception, match="has no end"):
        list(redis_like(scan).list_names("safecache/"))


def test_more_names_than_there_can_be_are_given_up(redis_like, monkeypatch, settings):
    monkeypatch.setattr(client, "_MOST_NAMES", 100)
    numbers = iter(range(1, 1 << 30))

    def scan(to, words):
        if words[0] == b"SCAN":
            name = b"safecache/%d" % next(numbers)
            to.write(b"*2\r\n$1\r\n1\r\n*1\r\n$%d\r\n%s\r\n" % (len(name), name))
        else:
            to.write(b":1\r\n")

    store = redis_like(scan)
    remote = client.get_client("redis://x", "test", lambda _: store)
    with pytest.raises(client.Unavailable):
        list(remote.list_names("safecache/"))


def test_remote_that_refuses_slowly_is_left_alone(settings, monkeypatch, tmp_path):
    """What it has is bad, and comes just in time: as costly as nothing that comes late."""
    settings(SAFECACHE_REMOTE="redis://127.0.0.1:1/0", SAFECACHE_REMOTE_TIMEOUT=1)
    client._state.reset()
    asked = []

    class Slow:
        survives_fork = True

        def read_unverified(self, names):
            asked.extend(names)
            time.sleep(0.4)
            return dict.fromkeys(names, b"forged")

        def close(self):
            pass

    monkeypatch.setattr(stores, "make_store", lambda *_: Slow())
    for number in range(12):
        key = f"f{number:051}"
        assert not bundles.fetch(Ref(Kind.FX_ENTRY, key, str(tmp_path)))
    assert len(asked) <= 4, asked
    assert waits.get_remaining_seconds(300) < 300
    assert parcels.parse_kind(asked[0].removeprefix(stores.make_prefix())) is Kind.FX_ENTRY


def test_remote_is_read_no_more_once_the_budget_is_spent(settings):
    settings(SAFECACHE_REMOTE="redis://127.0.0.1:1/0", SAFECACHE_SINGLE_FLIGHT_WAIT=10)
    client._state.reset()
    assert client.current().can_read()
    waits.charge(10, in_vain=True)
    assert not client.current().can_read() and client.get_background().can_read()
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=0)
    assert client.current().can_read(), "who waits for no compile reads the remote all the same"


ERRORS = [RuntimeError("it broke"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), OverflowError("2^80")]
ERRORS += [MemoryError(), RecursionError("too deep")]
REF = Ref(Kind.FX_ENTRY, "f" * 52, "/nowhere")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("record_lookup", lambda ref: tier.record_request(Requested(ref))),
        ("find_candidates", bundles.fetch),
        ("send", tier.keep),
    ],
)
def test_whatever_fails_in_the_remote_is_said_once(settings, monkeypatch, caplog, name, call, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(exchange, name, fail)
    settings(SAFECACHE_REMOTE="redis://127.0.0.1:1/0")
    assert not call(REF) and not call(REF)
    (line,) = caplog.messages
    assert "the remote cache failed" in line and type(error).__name__ in line
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(CacheReadError) as caught:
        call(REF)
    assert caught.value.__cause__ is error
