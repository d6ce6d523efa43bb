"""torch._dynamo.pgo: the profile of dynamic shapes that a job keeps between its runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache.entries import artifacts, copies, saving
from safecache.reporting import events
from safecache.reporting.kinds import Kind

__all__ = ["get_local_code_state", "lookup_remote_cache_entry", "put_code_state", "put_local_code_state"]


def get_local_code_state(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """get_local_code_state: a profile that is refused is a miss."""

    def get(cache_key: str) -> Any:
        path = _pgo().code_state_path(cache_key)
        if path is None:
            return wrapped(cache_key)
        with events.reading():
            root = os.path.dirname(os.path.dirname(path))
            content = artifacts.read(Kind.PGO_STATE, cache_key, path, root)
            if content is None:
                return None
            with artifacts.only(Kind.PGO_STATE, content):
                return wrapped(cache_key)

    return get(*args, **kwargs)


def lookup_remote_cache_entry(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """lookup_remote_cache_entry: likewise."""

    def lookup(remote_cache: Any, *rest: Any, **named: Any) -> Any:
        with events.reading():
            return wrapped(artifacts.VerifiedRemote(remote_cache, Kind.PGO_STATE), *rest, **named)

    return lookup(*args, **kwargs)


def put_local_code_state(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """put_local_code_state."""

    def put(cache_key: str) -> None:
        wrapped(cache_key)
        path = _pgo().code_state_path(cache_key)
        if path is not None:
            copies.send(path, Kind.PGO_STATE)

    put_code_state(put, instance, args, kwargs)


def put_code_state(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """put_remote_code_state, and put_local_code_state."""

    def put(cache_key: str, *rest: Any, **named: Any) -> None:
        if saving.can_seal(Kind.PGO_STATE):
            with saving.attempt(Kind.PGO_STATE, cache_key, _pgo()._CODE_STATE):
                wrapped(cache_key, *rest, **named)

    put(*args, **kwargs)


def _pgo() -> Any:
    return sys.modules["torch._dynamo.pgo"]
