"""Stores: what a remote is to us, whichever engine keeps it; and how one is reached by its URL."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from safecache.remote import extras
from safecache.settings import config

__all__ = ["END", "Oversized", "Store", "Stored", "Terms", "connected", "prefix", "store_from_client"]


# Bytes at the end of a content that tell it from others: ours end in a seal.
END = 256


class Oversized(NamedTuple):
    """In place of a content that is larger than was asked for, of which no more was read."""

    size: int


class Stored(NamedTuple):
    """A name, the size of its content in bytes, and when it was written, where the engine tells that."""

    name: str
    size: int
    modified: float | None = None


class Terms(NamedTuple):
    """On which a store is used: seconds for a connection and for an answer, and the largest content in bytes."""

    connect: float
    timeout: float
    most: int


class Store(Protocol):
    """Names and contents. Any method may raise anything, and may take longer than its terms say.

    ``survives_fork``: whether a process can use the engine that was forked from one that has.
    """

    survives_fork: bool = True

    def read(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        """The contents under these names, without those that it lacks: in one round trip, if the engine can.

        Several are only asked for at once whose sizes fit into the terms together.
        """

    def sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        """Their sizes in bytes, likewise."""

    def starts(self, names: Iterable[str], size: int) -> Mapping[str, bytes]:
        """The first bytes of the contents under these names, at most ``size`` of each, likewise."""

    def write(self, name: str, content: bytes) -> None:
        """Keep ``content`` under ``name``, whole or not at all."""

    def replace(self, name: str, content: bytes, known: bytes | None) -> bool:
        """As write(), if there is ``known`` by then, judged by its size and END; None: nothing. Else False.

        Where an engine, or its rights, cannot tell, it is written.
        """

    def names(self, below: str) -> Iterator[Stored]:
        """All names that begin with ``below``, which ends in a slash."""

    def clock(self) -> float | None:
        """The time there, in seconds since 1970; None if only what has just been written tells it."""
        return None

    def remove(self, name: str) -> None:
        """Forget what is under ``name``, if there is anything."""

    def close(self) -> None:
        """End what is under way, as far as can be, and free connections. It is not used afterwards."""
        return None


def prefix() -> str:
    """What all our names begin with in a store that others may use too; it ends in a slash."""
    return f"safecache/2/{config.current().namespace.replace('/', '~')}/"


def connected(url: str, terms: Terms) -> Store:
    """The store at ``url``, which may not have been asked anything yet. Raises anything, as for a library it lacks."""
    engine = (
        "redis_store" if extras.is_redis(url) else "directory_store" if extras.is_directory(url) else "object_store"
    )
    store: Store = importlib.import_module(f"safecache.remote.{engine}").connected(url, terms)
    return store


def store_from_client(client: Any, terms: Terms) -> Store:
    """The store that this client of redis-py was made for."""
    engine = importlib.import_module("safecache.remote.redis_store")
    store: Store = engine.of_client(client, terms)
    return store
