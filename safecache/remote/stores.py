"""Stores: the interface to every engine of a remote, and how to reach one by its URL."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from safecache.remote import extras
from safecache.settings import config

__all__ = [
    "END",
    "Oversized",
    "Store",
    "Stored",
    "Terms",
    "make_from_client",
    "make_prefix",
    "make_store",
    "make_terms",
]


# Bytes at the end of a content that tell it from others: ours end in a seal.
END = 256


class Oversized(NamedTuple):
    """Substitute for a content above the limit. ``size``: its bytes, or those received before the rest was dropped."""

    size: int


class Stored(NamedTuple):
    """Name in a store, the size of its content in bytes, and its time of writing (since 1970), if the engine knows."""

    name: str
    size: int
    modified: float | None = None


class Terms(NamedTuple):
    """Limits for the use of a store: seconds for a connection and for an answer, and the largest content in bytes.

    Redis and Valkey alone have a ``password_file``, and a ``ttl``: seconds for which what is written is kept.
    """

    connect: float
    timeout: float
    most: int
    password_file: str | None = None
    ttl: int | None = None


def make_terms(chosen: config.Config, leisure: float = 1) -> Terms:
    """Return the terms that these settings have for a remote, with ``leisure`` times their seconds."""
    seconds = chosen.remote_connect * leisure, chosen.remote_timeout * leisure
    return Terms(*seconds, chosen.remote_max_bytes, chosen.remote_password_file, chosen.remote_ttl)


class Store(Protocol):
    """Store of contents by name. Any method may raise anything, and may take longer than its terms say.

    ``survives_fork``: whether the engine works in a process that was forked from one that has used it.
    """

    survives_fork: bool = True

    def read_unverified(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        """Return the contents under these names, without missing ones, in one round trip if the engine can.

        Callers ask for several at once only if their sizes fit into the terms together.
        """

    def find_sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the size in bytes of each of ``names`` that exists."""

    def read_unverified_starts(self, names: Iterable[str], size: int) -> Mapping[str, bytes]:
        """Return the first bytes, at most ``size``, of each of ``names`` that exists."""

    def write(self, name: str, content: bytes) -> None:
        """Keep ``content`` under ``name``, whole or not at all."""

    def replace(self, name: str, content: bytes, known: bytes | None) -> bool:
        """Write ``content`` if ``name`` still has ``known``, judged by its size and END bytes. Return whether it had.

        ``known``: None if nothing is to be there. An engine that cannot tell, or has no rights to, writes in any case.
        """

    def list_names(self, below: str) -> Iterator[Stored]:
        """Yield all names that begin with ``below``, which ends in a slash."""

    def read_clock(self) -> float | None:
        """Return the store's time, in seconds since 1970; None if only what has just been written tells it."""
        return None

    def remove(self, name: str) -> None:
        """Remove what is under ``name``, if there is anything."""

    def close(self) -> None:
        """End requests under way, as far as can be, and free connections. The store is not used afterwards."""
        return None


def make_prefix() -> str:
    """Return the prefix, ending in a slash, of bundles' names: a store may have other users. Leases have another."""
    return f"safecache/2/{config.current().namespace.replace('/', '~')}/"


def make_store(url: str, terms: Terms) -> Store:
    """Return the store at ``url``, which may not be connected yet. Raises anything, as for a missing library."""
    engine = (
        "redis_store" if extras.is_redis(url) else "directory_store" if extras.is_directory(url) else "object_store"
    )
    store: Store = importlib.import_module(f"safecache.remote.{engine}").make_store(url, terms)
    return store


def make_from_client(client: Any, terms: Terms) -> Store:
    """Return a store at the server of this client of redis-py."""
    engine = importlib.import_module("safecache.remote.redis_store")
    store: Store = engine.make_from_client(client, terms)
    return store
