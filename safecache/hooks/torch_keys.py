"""torch's cache keys: what they are made of, where a lookup has missed. A hit costs a note of what was asked."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from safecache.lookups import Layer

__all__ = ["autograd_cache_key", "begin", "end", "get_hash", "load_with_key"]


class _Asked(NamedTuple):
    """A call of autograd_cache_key(), and what it has returned."""

    compute: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any


def _nothing() -> None:
    """In place of a reference to a compile: there is none."""


class _Thread(threading.local):
    """``number``: how many lookups the ``compile`` under way had before; ``collects``: whether ``lines`` are wanted."""

    compile: Callable[[], object] = staticmethod(_nothing)
    number = -1
    asked: _Asked | None = None
    collects = False
    lines: list[str] | None = None


_thread = _Thread()


def begin() -> None:
    """A lookup in AOTAutograd's cache begins."""
    guards = sys.modules.get("torch._guards")
    context = guards.CompileContext.try_get() if guards is not None else None
    # By itself, not by its id: that begins anew with torch._dynamo.reset().
    if context is not None and context is _thread.compile():
        _thread.number += 1
    else:
        _thread.number = 0
        _thread.compile = weakref.ref(context) if context is not None else _nothing
    _thread.asked = None


def autograd_cache_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """autograd_cache_key: as it is."""
    result = wrapped(*args, **kwargs)
    _thread.asked = _Asked(wrapped, args, kwargs, result)
    return result


def get_hash(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """AOTAutogradCachePickler.get_hash: of the whole key, at a miss, its parts are printed.

    Here, since torch has the graph's names as they are in the key only while it computes that.
    """
    if _thread.collects:
        _thread.collects = False
        _thread.lines = instance.debug_lines(*args, **kwargs)
    key: str = wrapped(*args, **kwargs)
    return key


def end(result: Any) -> None:
    """The lookup has ended with this result of AOTAutogradCache.try_load."""
    asked, _thread.asked = _thread.asked, None
    found = result[0] if isinstance(result, tuple) else result  # with the AOTConfig, from torch 2.13 on
    if found is None and asked is not None:
        _trying(Layer.AOT, lambda: _note_aot(asked))


def _trying(layer: Layer, work: Callable[[], None]) -> None:
    # Here and below: not before, since a process that hits needs none of it.
    from safecache import key_notes

    key_notes.trying(layer, work)


def _note_aot(asked: _Asked) -> None:
    from safecache.hooks import graph_names

    key, lines = asked.result
    lines = lines or _lines(asked)
    aot_config = asked.kwargs.get("config") or asked.args[2]
    name = graph_names.of_aot_graph(aot_config, _thread.number)
    functorch = sys.modules["torch._functorch.config"]
    stated = functorch.save_config_portable(ignore_private_configs=False)
    _note(Layer.AOT, key, name, lines, stated)


def _lines(asked: _Asked) -> list[str]:
    """Of a key that torch has not printed: it is computed once more."""
    _thread.collects, _thread.lines = True, None
    try:
        asked.compute(*asked.args, **asked.kwargs)
        return _thread.lines or []
    finally:
        _thread.collects, _thread.lines = False, None


def load_with_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FxGraphCache.load_with_key: a miss of a graph that is about to be compiled, with its debug lines."""

    def load(
        key: str,
        debug_lines: list[str],
        example_inputs: Any,
        local: bool,
        remote_cache: Any,
        is_backward: bool,
        constants: Any,
        evaluate_guards: Any = None,
    ) -> Any:
        found = wrapped(*args, **kwargs)
        # With guards of its own it is part of an AOTAutograd entry, which is then compiled as a whole.
        if found[0] is None and evaluate_guards is None:
            _trying(Layer.FX, lambda: _note_fx(key, debug_lines, is_backward))
        return found

    return load(*args, **kwargs)


def _note_fx(key: str, lines: list[str], is_backward: bool) -> None:
    from safecache.hooks import graph_names

    _note(Layer.FX, key, graph_names.of_fx_graph(is_backward=is_backward), lines, {})


def _note(layer: Layer, key: str, name: str, lines: list[str], functorch: dict[str, object]) -> None:
    from safecache import config, key_notes, provenance, torch_key_components

    environment = config.child_environment()
    parts = torch_key_components.components(lines, provenance.describe(), functorch, environment)
    key_notes.note(layer, key, name, sys.modules["torch._inductor.codecache"].cache_dir(), parts)
