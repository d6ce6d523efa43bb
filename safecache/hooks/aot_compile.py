"""torch._dynamo.aot_compile: functions and models compiled ahead of time, as in vLLM's ``model`` files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from safecache.entries import artifacts, saving, searches
from safecache.history import graph_names
from safecache.reporting.kinds import Kind

__all__ = ["deserialize", "deserialize_model", "serialize", "serialize_model"]


def serialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledFunction.serialize: where the bytes are made, whoever writes them."""
    result = wrapped(*args, **kwargs)
    return dataclasses.replace(result, serialized_data=saving.sealed(result.serialized_data, Kind.AOT_FUNCTION))


def deserialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledFunction.deserialize. Raises EntryRefusedError, in default mode too: vLLM compiles again then."""

    def load(data: bytes, *rest: Any, **named: Any) -> Any:
        return _loaded(Kind.AOT_FUNCTION, data, _name, lambda: wrapped(data, *rest, **named))

    return load(*args, **kwargs)


def _name() -> str:
    return artifacts.told_origin() or graph_names.of_current()


def _loaded(kind: Kind, data: bytes, name: Callable[[], str], load: Callable[[], Any]) -> Any:
    """What ``load`` makes of the bytes, once they are verified. A lookup, but for a function within a model."""
    if searches.is_under_way(Kind.AOT_MODEL):
        artifacts.require(kind, data)
        return load()
    with searches.under_way(Kind.AOT_MODEL, name) as search:
        artifacts.require(kind, data)
        try:
            loaded = load()
        except Exception as error:
            search.unloadable(error)
            raise
        search.hit()
        return loaded


def serialize_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """AOTCompiledModel.serialize."""
    return saving.sealed(wrapped(*args, **kwargs), Kind.AOT_MODEL)


def deserialize_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledModel.deserialize. Raises EntryRefusedError, in default mode too."""

    def load(model: Any, data: bytes, **named: Any) -> Any:
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        return _loaded(Kind.AOT_MODEL, data, lambda: name, lambda: wrapped(model, data, **named))

    return load(*args, **kwargs)
