"""Stores: what a remote is to us, whichever engine keeps it; and how one is reached by its URL."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from safecache.settings import config, settings

__all__ = ["MissingExtra", "Oversized", "Store", "Terms", "connected", "prefix"]


class Oversized(NamedTuple):
    """In place of a content that is larger than was asked for, of which no more was read."""

    size: int


class Terms(NamedTuple):
    """On which a store is used: seconds for a connection and for an answer, and the largest content in bytes."""

    connect: float
    timeout: float
    most: int


class Store(Protocol):
    """Names and contents. Any method may raise anything, and may take longer than its terms say.

    ``survives_fork``: whether a process can use the engine that was forked from one that has.
    """

    survives_fork: bool

    def read(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        """The contents under these names, without those that it lacks: in one round trip, if the engine can.

        Several are only asked for at once whose sizes fit into the terms together.
        """

    def sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        """Their sizes in bytes, likewise."""

    def write(self, name: str, content: bytes) -> None:
        """Keep ``content`` under ``name``, whole or not at all."""

    def names(self, below: str) -> Iterator[tuple[str, int | None]]:
        """All names that begin with ``below``, with their sizes in bytes where the engine tells those."""

    def remove(self, name: str) -> None:
        """Forget what is under ``name``, if there is anything."""

    def close(self) -> None:
        """End what is under way, as far as can be, and free connections. It is not used afterwards."""


class MissingExtra(Exception):
    """The library for an engine is not installed; the text has the line that installs it."""


def prefix() -> str:
    """What all our names begin with in a store that others may use too; it ends in a slash."""
    return f"safecache/1/{config.current().namespace.replace('/', '~')}/"


def connected(url: str, terms: Terms) -> Store:
    """The store at ``url``, which may not have been asked anything yet. Raises MissingExtra, and anything else."""
    is_redis = url.partition("://")[0].lower() in settings.REDIS
    extra, module = ("redis", "redis_store") if is_redis else ("object", "object_store")
    try:
        importlib.import_module("zstandard")
        engine = importlib.import_module(f"safecache.remote.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "safecache":
            raise
        raise MissingExtra(f"{error.name} is not installed: pip install 'safecache[{extra}]'") from error
    store: Store = engine.connected(url, terms)
    return store
