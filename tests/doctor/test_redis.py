"""`safecache doctor` asks a configured Redis for a PING over a real socket, and waits for no answer beyond a deadline."""

from __future__ import annotations

import importlib.util
import socket
import threading
from contextlib import contextmanager

import pytest
from conftest import needs_root

PONG = b"+PONG\r\n"


@contextmanager
def server(answer: bytes | None):
    """Listens, takes down what it is sent, and answers each time; never, for None. Gives its port and what it heard."""
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
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], heard
        listening.shutdown(socket.SHUT_RDWR)
        for connection in held:
            connection.close()
        thread.join(10)


def test_redis_that_answers(machine):
    with server(PONG) as (port, heard):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://user:s%20cret@127.0.0.1:{port}/3"})
    assert f"redis://127.0.0.1:{port}/3" in report.one("redis", "ok")["evidence"]
    assert b"".join(heard) == b"*3\r\n$4\r\nAUTH\r\n$4\r\nuser\r\n$6\r\ns cret\r\n*1\r\n$4\r\nPING\r\n"
    assert not any("cret" in one["evidence"] + one["remedy"] for one in report.findings)


def test_redis_that_nobody_serves(machine):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {"TORCHINDUCTOR_REDIS_HOST": "127.0.0.1", "TORCHINDUCTOR_REDIS_PORT": port}
    assert "Connection refused" in machine.examine(env=env).one("redis-unreachable", "error")["evidence"]


def test_redis_that_never_answers(machine):
    with server(None) as (port, _):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://127.0.0.1:{port}"})
    assert "within 3 s" in report.one("redis-hangs", "error")["evidence"]


@pytest.mark.parametrize("answer", [b"-NOAUTH Authentication required.\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_what_answers_and_serves_nothing(machine, answer):
    with server(answer) as (port, _):
        report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": f"redis://127.0.0.1:{port}"})
    assert answer[:-2].decode() in report.one("redis-refuses", "error")["evidence"]


def test_address_that_is_none(machine):
    report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": "localhost:6379"})
    assert "redis, rediss nor unix" in report.one("redis-unreachable", "error")["evidence"]


@needs_root
def test_network_that_is_not_there(machine):
    report = machine.examine(env={"TORCHINDUCTOR_REDIS_URL": "redis://10.0.0.1"}, within=["unshare", "-n"])
    assert "unreachable" in report.one("redis-unreachable", "error")["evidence"]


@pytest.mark.skipif(importlib.util.find_spec("redis") is not None, reason="the client is installed")
@pytest.mark.parametrize(
    "switch",
    [{"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1"}, {"TRITON_REMOTE_CACHE_BACKEND": "m:RedisRemoteCacheBackend"}],
)
def test_remote_cache_whose_client_is_not_installed(machine, switch):
    found = machine.examine(env=switch).one("no-redis-client", "error")
    assert found["remedy"] == "pip install redis" and next(iter(switch)) in found["evidence"]


def test_no_remote_cache_is_asked_for_none(machine):
    assert not any(code.startswith("redis") for code in machine.examine().codes)
