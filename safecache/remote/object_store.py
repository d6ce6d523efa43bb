"""Object stores (S3, Google's, Azure's) and web servers as a store, by obstore.

Rather than fsspec, since it is one library without dependencies for all of them, and its time limits are for a whole
request. It cannot be used in a process that was forked after its first use. Its functions for asyncio are not called: a
process that ends soon afterwards aborts, https://github.com/PyO3/pyo3-async-runtimes/issues/40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import from_url

from safecache.fs import parallel
from safecache.remote.stores import END, Oversized, Store, Stored, Terms

__all__ = ["ObjectStore", "make_store"]

_Result = TypeVar("_Result")

_CHUNK = 64 << 10
# Requests under way for several names.
_AT_ONCE = 16
# How stores that speak S3 answer to a condition that they do not know.
_UNABLE = "501 Not Implemented"


def make_store(url: str, terms: Terms) -> ObjectStore:
    """Return the store at ``url``. Raises obstore's errors for a URL that it does not take."""
    return ObjectStore(url, terms)


class ObjectStore(Store):
    """See stores.Store."""

    survives_fork = False

    def __init__(self, url: str, terms: Terms) -> None:
        self._most = terms.most
        client: Any = {
            "connect_timeout": timedelta(seconds=terms.connect),
            "timeout": timedelta(seconds=terms.timeout),
            # Whoever names an endpoint without TLS means it, and what comes from there is verified.
            "allow_http": True,
        }
        self._store: Any = from_url(url, client_options=client, retry_config={"max_retries": 0})

    def read_unverified(self, names: Iterable[str]) -> Mapping[str, bytes | Oversized]:
        def read_object(name: str) -> bytes | Oversized:
            found = obstore.get(self._store, name)
            if found.meta["size"] > self._most:
                return Oversized(found.meta["size"])
            content = _read_bounded(found, self._most)
            return content if len(content) <= self._most else Oversized(len(content))

        return _map_existing(read_object, names)

    def find_sizes(self, names: Iterable[str]) -> Mapping[str, int]:
        return _map_existing(lambda name: obstore.head(self._store, name)["size"], names)

    def read_unverified_starts(self, names: Iterable[str], size: int) -> Mapping[str, bytes]:
        part: Any = {"range": (0, size)}
        return _map_existing(
            lambda each: _read_bounded(obstore.get(self._store, each, options=part), size)[:size], names
        )

    def write(self, name: str, content: bytes) -> None:
        obstore.put(self._store, name, content)

    def replace(self, name: str, content: bytes, known: bytes | None) -> bool:
        mode: Any = "create" if known is None else self._find_version(name, known)
        if not mode:
            return False
        try:
            obstore.put(self._store, name, content, mode=mode)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except (NotImplementedError, exceptions.NotSupportedError):
            self.write(name, content)
        except exceptions.GenericError as error:
            if _UNABLE not in str(error):
                raise
            self.write(name, content)
        return True

    def _find_version(self, name: str, known: bytes) -> dict[str, str] | None:
        """Return the tags of what is stored, for a conditional write; None if that is not ``known`` any more."""
        try:
            found = obstore.head(self._store, name)
            if found["size"] != len(known):
                return None
            # Azure has no ranges that count from the end.
            begin = max(0, len(known) - END)
            end: Any = {"range": (begin, len(known)), "if_match": found["e_tag"]}
            last = _read_bounded(obstore.get(self._store, name, options=end), END)
        except (FileNotFoundError, exceptions.PreconditionError):
            return None
        tags = {tag: str(found[tag]) for tag in ("e_tag", "version") if found.get(tag)}
        return tags if last == known[-END:] else None

    def list_names(self, below: str) -> Iterator[Stored]:
        for chunk in obstore.list(self._store, below.rstrip("/") or None):
            for found in chunk:
                yield Stored(found["path"], found["size"], found["last_modified"].timestamp())

    def remove(self, name: str) -> None:
        obstore.delete(self._store, name)


def _map_existing(request: Callable[[str], _Result], names: Iterable[str]) -> dict[str, _Result]:
    """Return what ``request`` does for each of these names that exists."""

    def find(name: str) -> _Result | None:
        try:
            return request(name)
        except FileNotFoundError:
            return None

    wanted = list(names)
    # At the end of a process, which sends what is left name by name, Python starts no threads of a pool.
    found = map(find, wanted) if len(wanted) == 1 else parallel.map_in_threads(find, wanted, _AT_ONCE)
    return {name: result for name, result in zip(wanted, found, strict=True) if result is not None}


def _read_bounded(found: Any, most: int) -> bytes:
    """Return the content of the answer. Receive no more of it once that is more than ``most`` bytes."""
    content = bytearray()
    for chunk in found.stream(min_chunk_size=_CHUNK):
        content += chunk
        if len(content) > most:
            break
    return bytes(content)
