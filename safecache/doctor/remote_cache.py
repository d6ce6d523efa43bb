"""The Redis that a remote cache is configured to use: whether it answers, and in what time.

It is only asked for a PING, by the client that torch uses, but with a timeout and no second try: torch sets neither.
Source: ``RedisRemoteCacheBackend`` in torch/_inductor/remote_cache.py, the switches in torch/_inductor/config.py and
torch/_functorch/config.py, ``redis_knobs`` in triton/knobs.py.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from safecache.doctor import finding
from safecache.doctor.finding import Finding

__all__ = ["check"]

_TIMEOUT = 3.0  # seconds, for connecting, and for each answer
_SLOW = 0.1
_PORT = 6379
_INSTALL = "pip install redis"
_SWITCHES = (
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE",
    "TORCHINDUCTOR_BUNDLED_AUTOTUNE_REMOTE_CACHE",
)


class _Server(NamedTuple):
    """``variable``: what names it."""

    url: str
    variable: str

    def __str__(self) -> str:
        # Without the user and the password.
        url = urlsplit(self.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A Redis that does not answer, or refuses, where one is configured."""
    switches = [name for name in _SWITCHES if environ.get(name) == "1"]
    triton = "redis" in environ.get("TRITON_REMOTE_CACHE_BACKEND", "").lower()
    servers = list(_servers(environ, bool(switches), triton))
    if importlib.util.find_spec("redis") is not None:
        yield from map(_tried, servers)
    elif switches or triton:
        evidence = (
            f"{(switches or ['TRITON_REMOTE_CACHE_BACKEND'])[0]} asks for Redis, and its client is not installed."
        )
        yield finding.error("no-redis-client", evidence, _INSTALL)
    elif servers:
        evidence = f"Redis at {servers[0]} was not asked: its client is not installed, and a remote cache needs it too."
        yield finding.info("no-redis-client", evidence, _INSTALL)


def _servers(environ: Mapping[str, str], for_torch: bool, for_triton: bool) -> Iterator[_Server]:
    url, host = environ.get("TORCHINDUCTOR_REDIS_URL"), environ.get("TORCHINDUCTOR_REDIS_HOST")
    if url:
        yield _Server(url, "TORCHINDUCTOR_REDIS_URL")
    elif for_torch or host:
        port = environ.get("TORCHINDUCTOR_REDIS_PORT", str(_PORT))
        yield _Server(f"redis://{host or 'localhost'}:{port}", "TORCHINDUCTOR_REDIS_HOST")
    if for_triton:
        port = environ.get("TRITON_REDIS_PORT", str(_PORT))
        yield _Server(f"redis://{environ.get('TRITON_REDIS_HOST', 'localhost')}:{port}", "TRITON_REDIS_HOST")


def _tried(server: _Server) -> Finding:
    from redis import exceptions

    # In redis-py what asks for a password is a kind of ConnectionError, as a server that is still loading is.
    of_access = (exceptions.AuthenticationError, exceptions.AuthorizationError)
    refused = (exceptions.ResponseError, exceptions.InvalidResponse, *of_access)
    try:
        took = _ping(server)
    except exceptions.TimeoutError:
        evidence = f"Redis at {server} does not answer within {_TIMEOUT:g} s: each lookup waits for it."
        return finding.error("redis-hangs", evidence, _remedy(server))
    except refused as error:
        return finding.error("redis-refuses", f"What is at {server} refuses a PING: {error}.", _remedy(server))
    except (exceptions.RedisError, OSError, ValueError) as error:
        return finding.error("redis-unreachable", f"Redis at {server} cannot be reached: {error}.", _remedy(server))
    if took > _SLOW:
        evidence = f"Redis at {server} takes {1000 * took:.0f} ms to answer, and is asked for each graph."
        return finding.warning("redis-slow", evidence, _remedy(server))
    return finding.ok("redis", f"Redis at {server} answers in {1000 * took:.0f} ms.")


def _ping(server: _Server) -> float:
    """The seconds that it takes to answer, once it has let us in. Raises RedisError, OSError or ValueError."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    once = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(
        server.url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, retry=once
    ) as client:
        client.ping()
        began = time.monotonic()
        client.ping()
        return time.monotonic() - began


def _remedy(server: _Server) -> str:
    return f"unset {' '.join(_SWITCHES)}  # or correct {server.variable}"
