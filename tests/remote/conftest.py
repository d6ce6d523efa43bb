"""Real servers for the remote's tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from helpers.in_process import isolated, settings

from .liars import HOW, failing_as

__all__ = ["isolated", "new_redis", "one_redis", "redis_server", "s3", "settings"]
# Another server of this protocol, such as valkey-server, in place of redis-server.
REDIS = os.environ.get("SAFECACHE_TEST_REDIS_SERVER", "redis-server")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def await_port(port: int, process: subprocess.Popen) -> None:
    """Return once somebody listens there."""
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, "the server has ended"
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {port}")


class RedisServer:
    """A redis-server of this test run, which keeps nothing on disk."""

    def __init__(self, directory, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        command = [REDIS, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([*command, *options], cwd=directory, stdout=subprocess.DEVNULL)
        await_port(self.port, self.process)

    def client(self, **options):
        import redis

        return redis.Redis(port=self.port, **options)

    def flush(self) -> None:
        self.client().flushall()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="session")
def new_redis(tmp_path_factory):
    """Starts redis-servers with options; they end with the session."""
    if shutil.which(REDIS) is None:
        pytest.skip(f"{REDIS} is not installed")
    servers = []

    def start(*options: str) -> RedisServer:
        servers.append(RedisServer(tmp_path_factory.mktemp("redis"), *options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def one_redis(new_redis):
    return new_redis()


# One request at a time: moto looks at a condition of a write and writes in two steps, and S3 in one.
_MOTO = """
from moto import server
run_simple = server.run_simple
server.run_simple = lambda *args, **terms: run_simple(*args, **terms | {"threaded": False})
server.main()
"""


@pytest.fixture(scope="session")
def s3():
    """An S3 server, as the environment that leads to it."""
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    port = free_port()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", _MOTO, "-p", str(port)], stdout=quiet, stderr=quiet)
    await_port(port, process)
    yield {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-theirs",
        "AWS_REGION": "us-east-1",
        # The first request of a server that has just started takes it long.
        "SAFECACHE_REMOTE_TIMEOUT": "20",
        "SAFECACHE_REMOTE_FLUSH": "60",
    }
    process.terminate()
    process.wait(20)


def make_bucket(name: str, s3: dict[str, str]) -> None:
    """On that S3 server."""
    urllib.request.urlopen(urllib.request.Request(f"{s3['AWS_ENDPOINT_URL']}/{name}", method="PUT")).close()


@pytest.fixture
def redis_server(one_redis):
    """One redis-server for all tests of the run, empty."""
    one_redis.flush()
    return one_redis


@pytest.fixture
def server(redis_server):
    """A client of that redis-server."""
    return redis_server.client()


def port_of(server) -> int:
    """The port of the server that this client is for."""
    return server.connection_pool.connection_kwargs["port"]


def each_way(ways=HOW):
    """For a test of ``failing``: every way once, by turns in strict mode and by default."""
    cases = [(how, number % 2 == 1) for number, how in enumerate(ways)]
    return pytest.mark.parametrize(("failing", "strict"), cases, indirect=["failing"])


@pytest.fixture(params=HOW)
def failing(request):
    """A server that fails as its parameter says."""
    server = failing_as(request.param)
    yield server
    server.close()
