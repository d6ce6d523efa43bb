"""Redis and Valkey as a store, by redis-py."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from safecache.remote.stores import END, Oversized, Store, Stored, Terms

__all__ = ["RedisStore", "make_from_client", "make_store"]

# Bytes of protocol around the contents of one answer.
_AROUND = 1 << 20
_BATCH = 1000
# Bytes in a second; and seconds without any new name, after which a listing has no end.
_SLOWEST, _LISTLESS = 64 << 10, 300.0
# What a node of a cluster says about names that are another's.
_OF_CLUSTER = (redis.exceptions.MovedError, redis.exceptions.AskError, redis.exceptions.ClusterDownError)
_NO_CLUSTER = "it is a node of a Redis Cluster, which is not supported: use a server in none, or an object store"


def make_store(url: str, terms: Terms) -> RedisStore:
    """Return the store at ``url``. Raises ValueError if redis-py does not take it, OSError for a password file."""
    scheme, _, rest = url.partition("://")
    password = {}
    if terms.password_file is not None:
        with open(terms.password_file, encoding="utf-8") as file:
            password = {"password": file.read().strip()}
    is_tls = scheme.lower().endswith("ss") or scheme.lower() == "valkeys"
    pool = redis.ConnectionPool.from_url(f"{'rediss' if is_tls else 'redis'}://{rest}", **password)
    return RedisStore(pool, terms, terms.ttl)


def make_from_client(client: Any, terms: Terms) -> RedisStore:
    """Return a store at the server of this client of redis-py."""
    pool = client.connection_pool
    return RedisStore(redis.ConnectionPool(connection_class=pool.connection_class, **pool.connection_kwargs), terms)


class _Bounded:
    """A socket from which no more is received, since the last time anything was sent, than an answer may have.

    And not for longer than ``seconds``, and the time that what was received takes at _SLOWEST: a timeout of a socket is
    for each byte.
    """

    def __init__(self, socket: Any, most: int, seconds: float) -> None:
        self._socket, self._most, self._left, self._seconds = socket, most, most, seconds
        self._began = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def sendall(self, data: Any, *args: Any) -> Any:
        self._left, self._began = self._most, time.monotonic()
        return self._socket.sendall(data, *args)

    def recv(self, size: int, *args: Any) -> bytes:
        content: bytes = self._socket.recv(size, *args)
        self._count_bytes(len(content))
        return content

    def recv_into(self, *args: Any) -> int:
        size: int = self._socket.recv_into(*args)
        self._count_bytes(size)
        return size

    def _count_bytes(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            self._socket.close()
            raise redis.ConnectionError(f"it answers with more than the {self._most} bytes that were asked for")
        if time.monotonic() - self._began > self._seconds + (self._most - self._left) / _SLOWEST:
            self._socket.close()
            raise redis.TimeoutError(f"no whole answer within {self._seconds:g} s")


def _make_bounded(base: Any, most: int, seconds: float) -> Any:
    class Bounded(base):  # type: ignore[misc]
        def _connect(self) -> Any:
            return _Bounded(super()._connect(), most, seconds)

        def read_response(self, *args: Any, **named: Any) -> Any:
            try:
                return super().read_response(*args, **named)
            except _OF_CLUSTER as error:
                raise redis.ResponseError(_NO_CLUSTER) from error

    return Bounded


class RedisStore(Store):
    """See stores.Store. ``ttl``: seconds for which what is written is kept."""

    def __init__(self, pool: redis.ConnectionPool, terms: Terms, ttl: int | None = None) -> None:
        self._most, self._ttl = terms.most, ttl
        pool.connection_kwargs |= {
            "socket_connect_timeout": terms.connect,
            "socket_timeout": terms.timeout,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "decode_responses": False,
        }
        pool.connection_class = _make_bounded(pool.connection_class, self._most + _AROUND, terms.timeout)
        self._client: Any = redis.Redis(connection_pool=pool)

    def _pipe_command(self, command: str, names: Iterable[str], *rest: object) -> Iterator[tuple[str, Any]]:
        asked, pipe = list(names), self._client.pipeline(transaction=False)
        for name in asked:
            pipe.execute_command(command, name, *rest)
        return zip(asked, pipe.execute(), strict=True)

    def read_unverified(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        found: dict[str, bytes | Oversized] = {}
        # One byte more than is wanted tells that there is more.
        for name, content in self._pipe_command("GETRANGE", names, 0, self._most):
            if not isinstance(content, bytes):
                raise TypeError(f"it answered with {type(content).__name__}")
            if content:
                found[name] = content if len(content) <= self._most else Oversized(len(content))
        return found

    def find_sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        return {name: int(size) for name, size in self._pipe_command("STRLEN", names) if size}

    def read_unverified_starts(self, names: Iterable[str], size: int) -> Mapping[str, bytes]:
        return {name: content for name, content in self._pipe_command("GETRANGE", names, 0, size - 1) if content}

    def write(self, name: str, content: bytes) -> None:
        self._client.set(name, content, ex=self._ttl)

    def replace(self, name: str, content: bytes, known: bytes | None) -> bool:
        if known is None:
            return bool(self._client.set(name, content, ex=self._ttl, nx=True))
        with self._client.pipeline() as pipe:
            try:
                pipe.watch(name)
            except redis.ResponseError:
                # Rights to read and write do not include it, and some that stand between do not know it.
                self.write(name, content)
                return True
            if (pipe.strlen(name), pipe.getrange(name, -END, -1)) != (len(known), known[-END:]):
                return False
            pipe.multi()
            pipe.set(name, content, ex=self._ttl)
            with suppress(redis.WatchError):
                pipe.execute()
                return True
        return False

    def list_names(self, below: str) -> Iterator[Stored]:
        pattern = re.sub(r"[*?\[\]\\^-]", r"\\\g<0>", below) + "*"
        told, cursor, began = set(), 0, time.monotonic()
        while True:
            cursor, batch = self._client.scan(cursor, match=pattern, count=_BATCH)
            # A scan may tell a name more than once.
            named = (name.decode(errors="replace") for name in batch)
            new = [name for name in dict.fromkeys(named) if name not in told]
            if new:
                told.update(new)
                yield from itertools.starmap(Stored, self.find_sizes(new).items())
                began = time.monotonic()
            if not cursor:
                return
            if time.monotonic() - began > _LISTLESS:
                raise redis.TimeoutError(f"its list of names has no end: nothing new for {_LISTLESS:g} s")

    def read_clock(self) -> float | None:
        seconds, microseconds = self._client.time()
        return float(seconds) + float(microseconds) / 1e6

    def remove(self, name: str) -> None:
        self._client.unlink(name)

    def close(self) -> None:
        with suppress(redis.RedisError, OSError):
            self._client.connection_pool.disconnect(inuse_connections=True)
