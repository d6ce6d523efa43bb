"""torch._dynamo.package: the precompile entries of Dynamo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache.code import extension_builds
from safecache.entries import artifacts, copies, loading, saving
from safecache.errors import EntryRefusedError
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason

__all__ = ["load", "read", "write"]

# What the seal calls the digest of the function that the entry is of.
_FUNCTION = "function"


def write(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """DiskDynamoStore.write: sealed for its path's last part, which is all that DiskDynamoCache looks up by."""

    def save(cache_entry: Any, path: str) -> None:
        if saving.can_seal(Kind.DYNAMO_PACKAGE):
            main = cache_entry.dynamo.codes[0]
            of = {_FUNCTION: extension_builds.digest(main.python_code, main.python_module)}
            with saving.attempt(Kind.DYNAMO_PACKAGE, _key(path), cache_entry, of):
                wrapped(cache_entry, path)
                copies.send(_file(instance, path), Kind.DYNAMO_PACKAGE)

    save(*args, **kwargs)


def read(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """DiskDynamoStore.read. Raises EntryRefusedError, in default mode too, for an entry that is refused."""

    def load(path: str) -> Any:
        with events.reading():
            if artifacts.only_was_set():
                return wrapped(path)
            content = artifacts.read(Kind.DYNAMO_PACKAGE, _key(path), _file(instance, path))
            if content is None:
                raise EntryRefusedError(f"safecache: {events.refusals()[-1]}")
            with artifacts.only(Kind.DYNAMO_PACKAGE, content):
                return wrapped(path)

    return load(*args, **kwargs)


def load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """DiskDynamoCache.load: an entry that is refused is a miss, and so is one of another function."""

    def find(fn: Callable[..., Any]) -> Any:
        key = sys.modules["torch._dynamo.package"].CompilePackage.source_id_from_fn(fn)
        with events.reading():
            root = os.path.dirname(instance.path_prefix())
            content = artifacts.read(Kind.DYNAMO_PACKAGE, _key(key), _file(instance, key), root)
            if content is None or (content and not _is_of(fn, key, content, _file(instance, key))):
                return None
            with artifacts.only(Kind.DYNAMO_PACKAGE, content):
                return wrapped(fn)

    return find(*args, **kwargs)


def _is_of(fn: Callable[..., Any], key: str, content: bytes, path: str) -> bool:
    """Whether the entry is of this very function: torch's key is its name and its first line, in whatever file."""
    innermost = sys.modules["torch._dynamo.eval_frame"].innermost_fn(fn)
    here = extension_builds.digest(innermost.__code__, innermost.__module__)
    there = artifacts.stated(Kind.DYNAMO_PACKAGE, _key(key), content).get(_FUNCTION)
    if there == here:
        return True
    evidence = "it is of another function of the same name, in the same line" if there else "it does not say of which"
    loading.note(Reason.KEY_DIFFERS, Kind.DYNAMO_PACKAGE, path, evidence, "The function is compiled.")
    return False


def _key(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


def _file(store: Any, path: str) -> str:
    return os.path.join(store.path_prefix(), path, "entry")
