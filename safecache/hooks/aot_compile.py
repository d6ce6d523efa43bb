"""torch._dynamo.aot_compile: functions and models compiled ahead of time, as in vLLM's ``model`` files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from safecache import artifacts, saving
from safecache.seal import Kind

__all__ = ["deserialize", "deserialize_model", "serialize", "serialize_model"]


def serialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledFunction.serialize: where the bytes are made, whoever writes them."""
    result = wrapped(*args, **kwargs)
    return dataclasses.replace(result, serialized_data=saving.sealed(result.serialized_data, Kind.AOT_FUNCTION))


def deserialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledFunction.deserialize. Raises EntryRefusedError, in default mode too: vLLM compiles again then."""

    def load(data: bytes, *rest: Any, **named: Any) -> Any:
        artifacts.require(Kind.AOT_FUNCTION, data)
        return wrapped(data, *rest, **named)

    return load(*args, **kwargs)


def serialize_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """AOTCompiledModel.serialize."""
    return saving.sealed(wrapped(*args, **kwargs), Kind.AOT_MODEL)


def deserialize_model(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTCompiledModel.deserialize. Raises EntryRefusedError, in default mode too."""

    def load(model: Any, data: bytes, **named: Any) -> Any:
        artifacts.require(Kind.AOT_MODEL, data)
        return wrapped(model, data, **named)

    return load(*args, **kwargs)
