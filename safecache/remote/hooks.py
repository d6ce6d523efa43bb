"""Redis servers of torch's and Triton's own remote caches, which set no time limits and let most errors through.

These servers are asked like safecache's own remote, in time or not at all. One that fails is not used for 30 s.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from safecache.patching.hook import hook
from safecache.remote import client, stores
from safecache.remote.client import Client, Unavailable
from safecache.remote.stores import Oversized, Store, Terms
from safecache.reporting import events
from safecache.reporting.kinds import Reason

__all__ = ["Redis", "init_torch_redis", "init_triton_redis", "make_bounded_redis", "make_redis_client"]


class Redis:
    """Substitute for the redis-py client of torch and Triton. A failure is reported, and is a miss or no write.

    ``shown``: the server, for messages. ``answered``: whether the server has answered the last read.
    """

    def __init__(self, remote: Client) -> None:
        self.shown, self.answered, self._remote = remote.shown, True, remote

    def get(self, name: str) -> bytes | None:
        """Return the value under ``name``; None if there is none, or none that can be had now."""
        return self.mget([name])[0]

    def mget(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the value under each of ``names``, as get() does, in one round trip."""
        found: Mapping[str, bytes | Oversized] = {}
        self.answered = False
        with suppress(Unavailable):
            found = self._remote.read_unverified(names)
            self.answered = True
        return [self._drop_oversized(name, found.get(name)) for name in names]

    def _drop_oversized(self, name: str, content: bytes | Oversized | None) -> bytes | None:
        if not isinstance(content, Oversized):
            return content
        text, why = f"did not fetch {name[:100]} from remote cache {self.shown}", f"it has {content.size} bytes or more"
        remedy = "Recompiling it. Help: raise max_bytes in the remote's URL"
        events.report(Reason.TOO_LARGE, text, why=why, cause=f"remote {self.shown}", remedy=remedy)
        return None

    def set(self, name: str, content: bytes) -> None:
        """Keep ``content`` under ``name``, if that can be done now."""
        with suppress(Unavailable):
            self._remote.write(name, content)


def make_bounded_redis(theirs: Any) -> Redis:
    """Return a substitute with time limits for a client of redis-py that has not been used yet."""
    known = theirs.connection_pool.connection_kwargs
    where = f"unix://{known['path']}" if "path" in known else f"redis://{known.get('host')}:{known.get('port')}"

    who = known.get("username"), known.get("password")
    connect = functools.partial(stores.make_from_client, theirs)
    return Redis(client.get_client(f"{where}/{known.get('db') or 0}", who, connect))


def make_redis_client(host: str, port: int) -> Redis:
    """Return a client of a server without a password. If redis-py is missing, the first use reports that."""

    def connect(terms: Terms) -> Store:
        try:
            import redis
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error.name} is not installed: pip install redis") from error
        return stores.make_from_client(redis.Redis(host=host, port=port), terms)

    return Redis(client.get_client(f"redis://{host}:{port}/0", None, connect))


@hook(
    "torch._inductor.remote_cache:RedisRemoteCacheBackend.__init__(self, cache_id)",
    why="Torch sets no timeout on its Redis client and handles ConnectionError alone, so a silent server hangs the "
    "compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/remote_cache.py#L287",
)
def init_torch_redis(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """torch's RedisRemoteCacheBackend.__init__: its client is one of ours, to the same server."""
    wrapped(*args, **kwargs)
    instance._redis = make_bounded_redis(instance._redis)


@hook(
    "triton.runtime.cache:RedisRemoteCacheBackend.__init__(self, key)",
    why="Triton reads its Redis settings from knobs.cache.redis, which does not exist, so the backend always raises "
    "AttributeError.",
    issue="https://github.com/triton-lang/triton/blob/v3.9.0/python/triton/runtime/cache.py#L152",
)
def init_triton_redis(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """Triton's RedisRemoteCacheBackend.__init__, which fails in 3.6 to 3.9: its knobs are elsewhere."""

    def connect(key: str) -> None:
        known = sys.modules["triton"].knobs
        knobs = getattr(known.cache, "redis", known.redis)
        instance._key, instance._key_fmt = key, knobs.key_format
        instance._redis = make_redis_client(knobs.host, knobs.port)

    connect(*args, **kwargs)
