"""The Redis that a remote cache is configured to use: whether it answers, and in what time.

Spoken to over a socket, with a deadline for all of it, and only asked for a PING: torch's own client has no timeout.
Source: ``RedisRemoteCacheBackend`` in torch/_inductor/remote_cache.py, the switches in torch/_inductor/config.py and
torch/_functorch/config.py, ``redis_knobs`` in triton/knobs.py.
"""

from __future__ import annotations

import importlib.util
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from safecache.doctor import finding
from safecache.doctor.finding import Finding

__all__ = ["check"]

_TIMEOUT = 3.0  # seconds, for connecting and all answers
_SLOW = 0.1
_PORT = 6379
_SWITCHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
)


class _Server(NamedTuple):
    """``variable``: what names it."""

    url: SplitResult
    variable: str

    def __str__(self) -> str:
        # Without the user and the password.
        return f"{self.url.scheme}://{self.url.netloc.rpartition('@')[2]}{self.url.path}"


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A Redis that does not answer, or refuses, where one is configured."""
    switches = [name for name in _SWITCHES if environ.get(name) == "1"]
    triton = "redis" in environ.get("TRITON_REMOTE_CACHE_BACKEND", "").lower()
    if (switches or triton) and importlib.util.find_spec("redis") is None:
        evidence = (
            f"{(switches or ['TRITON_REMOTE_CACHE_BACKEND'])[0]} asks for Redis, and its client is not installed."
        )
        yield finding.error("no-redis-client", evidence, "pip install redis")
    for server in _servers(environ, bool(switches), triton):
        yield _tried(server)


def _servers(environ: Mapping[str, str], for_torch: bool, for_triton: bool) -> Iterator[_Server]:
    url, host = environ.get("TORCHINDUCTOR_REDIS_URL"), environ.get("TORCHINDUCTOR_REDIS_HOST")
    if url:
        yield _Server(urlsplit(url), "TORCHINDUCTOR_REDIS_URL")
    elif for_torch or host:
        port = environ.get("TORCHINDUCTOR_REDIS_PORT", str(_PORT))
        yield _Server(urlsplit(f"redis://{host or 'localhost'}:{port}"), "TORCHINDUCTOR_REDIS_HOST")
    if for_triton:
        port = environ.get("TRITON_REDIS_PORT", str(_PORT))
        yield _Server(urlsplit(f"redis://{environ.get('TRITON_REDIS_HOST', 'localhost')}:{port}"), "TRITON_REDIS_HOST")


def _tried(server: _Server) -> Finding:
    began = time.monotonic()
    try:
        said = _ping(server.url, began + _TIMEOUT)
    except TimeoutError:
        evidence = f"Redis at {server} does not answer within {_TIMEOUT:g} s: each lookup waits for it."
        return finding.error("redis-hangs", evidence, _remedy(server))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return finding.error("redis-unreachable", f"Redis at {server} cannot be reached: {reason}.", _remedy(server))
    took = time.monotonic() - began
    if said != b"+PONG":
        evidence = f"What answers at {server} does not serve a PING: {said.decode(errors='replace')}."
        return finding.error("redis-refuses", evidence, _remedy(server))
    if took > _SLOW:
        evidence = f"Redis at {server} takes {1000 * took:.0f} ms to answer, and is asked for each graph."
        return finding.warning("redis-slow", evidence, _remedy(server))
    return finding.ok("redis", f"Redis at {server} answers in {1000 * took:.0f} ms.")


def _remedy(server: _Server) -> str:
    return f"unset {' '.join(_SWITCHES)}  # or correct {server.variable}"


def _ping(url: SplitResult, end: float) -> bytes:
    """The answer to a PING, or an earlier one that says no. Raises OSError or ValueError."""
    commands = [[b"PING"]]
    if url.password is not None:
        user = [unquote(url.username).encode()] if url.username else []
        commands.insert(0, [b"AUTH", *user, unquote(url.password).encode()])
    with _connected(url, end) as connection:
        answer = b""
        for command in commands:
            connection.sendall(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in command))
            answer = _line(connection, end)
            if answer.startswith(b"-"):
                break
        return answer


def _connected(url: SplitResult, end: float) -> socket.socket:
    if url.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT)
        connection.connect(url.path)
        return connection
    if url.scheme not in ("redis", "rediss"):
        raise ValueError(f"{url.scheme!r} is neither redis, rediss nor unix")
    host = url.hostname or "localhost"
    connection = socket.create_connection((host, url.port or _PORT), _left(end))
    if url.scheme == "rediss":
        connection.settimeout(_left(end))
        connection = ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    return connection


def _line(connection: socket.socket, end: float) -> bytes:
    """Up to the first end of a line; no more than is worth showing."""
    line = b""
    while b"\r\n" not in line and len(line) < 200:
        connection.settimeout(_left(end))
        received = connection.recv(200)
        if not received:
            break
        line += received
    return line.partition(b"\r\n")[0][:200]


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
