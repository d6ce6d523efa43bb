"""torch._dynamo.package: the precompile entries of Dynamo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache import artifacts, loading, saving, write_through
from safecache.errors import EntryRefusedError
from safecache.seal import Kind

__all__ = ["load", "read", "write"]


def write(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """DiskDynamoStore.write: sealed for its path's last part, which is all that DiskDynamoCache looks up by."""

    def save(cache_entry: Any, path: str) -> None:
        if saving.can_seal(Kind.DYNAMO_PACKAGE):
            with saving.attempt(Kind.DYNAMO_PACKAGE, _key(path), cache_entry):
                wrapped(cache_entry, path)
                write_through.send(_file(instance, path), Kind.DYNAMO_PACKAGE)

    save(*args, **kwargs)


def read(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """DiskDynamoStore.read. Raises EntryRefusedError, in default mode too, for an entry that is refused."""

    def load(path: str) -> Any:
        with loading.reading():
            if artifacts.only_was_set():
                return wrapped(path)
            content = artifacts.read(Kind.DYNAMO_PACKAGE, _key(path), _file(instance, path))
            if content is None:
                raise EntryRefusedError(f"safecache: {loading.refusals()[-1]}")
            with artifacts.only(Kind.DYNAMO_PACKAGE, content):
                return wrapped(path)

    return load(*args, **kwargs)


def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """DiskDynamoCache.load: an entry that is refused is a miss."""

    def find(fn: Callable[..., Any]) -> Any:
        key = sys.modules["torch._dynamo.package"].CompilePackage.source_id_from_fn(fn)
        with loading.reading():
            root = os.path.dirname(instance.path_prefix())
            content = artifacts.read(Kind.DYNAMO_PACKAGE, _key(key), _file(instance, key), root)
            if content is None:
                return None
            with artifacts.only(Kind.DYNAMO_PACKAGE, content):
                return wrapped(fn)

    return find(*args, **kwargs)


def _key(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


def _file(store: Any, path: str) -> str:
    return os.path.join(store.path_prefix(), path, "entry")
