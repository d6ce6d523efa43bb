"""`safecache doctor` asks a configured Redis for a PING over a real socket, and waits for no answer beyond a timeout."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from conftest import needs_root

from safecache.doctor import configuration

PONG = b"+PONG\r\n"
# What redis-py 8 begins with, before the PING: the client is told that the server speaks its protocol.
PROTOCOL = b"%1\r\n$5\r\nproto\r\n:3\r\n"


@pytest.fixture
def client():
    pytest.importorskip("redis")


@contextmanager
def server(answer: bytes | None, delay: float = 0.0):
    """Listens, takes down what it is sent, agrees to what comes before a PING, and gives this answer to that.

    None for a server that never answers at all. Gives its port and what it heard.
    """
    heard: list[bytes] = []
    held = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                held.append(connection)
                while data := connection.recv(1000):
                    heard.append(data)
                    if answer is not None:
                        time.sleep(delay)
                        replies = {b"PING": answer, b"HELLO": PROTOCOL}
                        asked = re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)", data)
                        connection.sendall(b"".join(replies.get(command, b"+OK\r\n") for command in asked))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], heard
        listening.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()
        thread.join(10)


def test_redis_that_answers(machine, client):
    with server(PONG) as (port, heard):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://user:s%20cret@127.0.0.1:{port}/3"})
    assert f"redis://127.0.0.1:{port}/3" in report.one("redis", "ok")["evidence"]
    said = b"".join(heard)
    assert b"$4\r\nuser\r\n$6\r\ns cret\r\n" in said and said.endswith(b"*1\r\n$4\r\nPING\r\n")
    assert not any("cret" in one["evidence"] + one["remedy"] for one in report.findings)


def test_redis_that_is_slow(machine, client):
    with server(PONG, delay=0.11) as (port, _):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://127.0.0.1:{port}"})
    assert "for each graph" in report.one("redis-slow", "warning")["evidence"]


def test_redis_that_nobody_serves(machine, client):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {"TORCHINDUCTOR_REDIS_HOST": "127.0.0.1", "TORCHINDUCTOR_REDIS_PORT": port}
    assert "Connection refused" in machine.examine(env=env).one("redis-unreachable", "error")["evidence"]


def test_redis_that_never_answers_is_asked_once(machine, client):
    with server(None) as (port, heard):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://127.0.0.1:{port}"})
    assert "within 3 s" in report.one("redis-hangs", "error")["evidence"] and len(heard) == 1


ANSWERS = {
    b"-NOAUTH Authentication required.\r\n": "Authentication required.",
    b"-NOPERM this user has no permissions to run the 'ping' command\r\n": "no permissions",
    b"HTTP/1.1 400 Bad Request\r\n": "HTTP/1.1 400 Bad Request",
}


@pytest.mark.parametrize("answer", ANSWERS, ids=["password", "permission", "other-server"])
def test_what_answers_and_serves_nothing(machine, client, answer):
    with server(answer) as (port, _):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://127.0.0.1:{port}"})
    assert ANSWERS[answer] in report.one("redis-refuses", "error")["evidence"]


def test_address_that_is_none(machine, client):
    report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": "localhost:6379"})
    assert "redis://, rediss://, unix://" in report.one("redis-unreachable", "error")["evidence"]


@needs_root
def test_network_that_is_not_there(machine, client):
    report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": "redis://10.0.0.1"}, within=["unshare", "-n"])
    assert "unreachable" in report.one("redis-unreachable", "error")["evidence"]


@pytest.mark.parametrize(
    "switch",
    [{"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1"}, {"TRITON_REMOTE_CACHE_BACKEND": "m:RedisRemoteCacheBackend"}],
)
def test_remote_cache_whose_client_is_not_installed(monkeypatch, switch):
    monkeypatch.setitem(sys.modules, "redis", None)
    [found] = configuration.check_remote_cache(switch)
    assert (found.code, found.severity, found.remedy) == ("no-redis-client", "error", "pip install redis")
    assert next(iter(switch)) in found.evidence


def test_address_of_a_redis_whose_client_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    [found] = configuration.check_remote_cache({"TORCHINDUCTOR_REDIS_URL": "redis://:s@there/1"})
    assert (found.code, found.severity) == ("no-redis-client", "info") and "redis://there/1" in found.evidence


def test_no_remote_cache_is_asked_for_none(machine):
    assert not any(code.startswith("redis") for code in machine.examine().codes)
