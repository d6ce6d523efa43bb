"""torch's cache keys: what they are made of, where a lookup has missed. A hit costs a note of what was asked."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from safecache.history import graph_names
from safecache.reporting.kinds import Kind

__all__ = ["asked", "collect", "lookup", "missed", "missed_graph", "name", "name_of_graph"]


class _Asked(NamedTuple):
    """A call of autograd_cache_key(), and what it has returned."""

    compute: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any


def _nothing() -> None:
    """In place of a reference to a compile: there is none."""


class _Thread(threading.local):
    """``config``: the AOTConfig of the lookup under way, if there is one, and ``asked`` its key.

    ``number``: how many lookups the ``compile`` under way had before; ``collects``: whether ``lines`` are wanted.
    """

    compile: Callable[[], object] = staticmethod(_nothing)
    number = -1
    config: Any = None
    asked: _Asked | None = None
    collects = False
    lines: list[str] | None = None


_thread = _Thread()


@contextmanager
def lookup(aot_config: Any) -> Iterator[None]:
    """For the time of a lookup in AOTAutograd's cache."""
    guards = sys.modules.get("torch._guards")
    context = guards.CompileContext.try_get() if guards is not None else None
    # By itself, not by its id: that begins anew with torch._dynamo.reset().
    if context is not None and context is _thread.compile():
        _thread.number += 1
    else:
        _thread.number = 0
        _thread.compile = weakref.ref(context) if context is not None else _nothing
    _thread.config, _thread.asked = aot_config, None
    try:
        yield
    finally:
        _thread.config = _thread.asked = None


def name() -> str:
    """The name of the graph that is looked up in AOTAutograd's cache."""
    return graph_names.of_aot_graph(_thread.config, _thread.number)


def name_of_graph(*, is_backward: bool) -> str:
    """The name of a graph that is looked up in the FX graph cache, perhaps for an entry of AOTAutograd's."""
    if _thread.config is not None:
        return f"{name()} {'backward' if is_backward else 'forward'}"
    return graph_names.of_fx_graph(is_backward=is_backward)


def asked(compute: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
    """autograd_cache_key() has returned this ``result``."""
    _thread.asked = _Asked(compute, args, kwargs, result)


def collect(pickler: Any, args: Any, kwargs: Any) -> None:
    """Print the parts of a whole key, if a miss asks for them.

    At AOTAutogradCachePickler.get_hash, since torch has the graph's names as they are in the key only there.
    """
    if _thread.collects:
        _thread.collects = False
        _thread.lines = pickler.debug_lines(*args, **kwargs)


def missed() -> None:
    """The lookup in AOTAutograd's cache has found nothing to use."""
    request = _thread.asked
    if request is not None:
        _trying(Kind.AOT_ENTRY, lambda: _note_aot(request))


def _trying(kind: Kind, work: Callable[[], None]) -> None:
    # Here and below: not before, since a process that hits needs none of it.
    from safecache.explain import key_notes

    key_notes.trying(kind, work)


def _note_aot(request: _Asked) -> None:
    key, lines = request.result
    functorch = sys.modules["torch._functorch.config"]
    stated = functorch.save_config_portable(ignore_private_configs=False)
    _note(Kind.AOT_ENTRY, key, name(), lines or _lines(request), stated)


def _lines(request: _Asked) -> list[str]:
    """Of a key that torch has not printed: it is computed once more."""
    _thread.collects, _thread.lines = True, None
    try:
        request.compute(*request.args, **request.kwargs)
        return _thread.lines or []
    finally:
        _thread.collects, _thread.lines = False, None


def missed_graph(key: str, lines: list[str], *, is_backward: bool) -> None:
    """A lookup in the FX graph cache has found nothing to use; ``lines``: torch's debug lines of the key."""
    graph = name_of_graph(is_backward=is_backward)
    _trying(Kind.FX_ENTRY, lambda: _note(Kind.FX_ENTRY, key, graph, lines, {}))


def _note(kind: Kind, key: str, graph: str, lines: list[str], functorch: dict[str, object]) -> None:
    from safecache.explain import components, key_notes
    from safecache.settings import config
    from safecache.signing import provenance

    environment = config.child_environment()
    parts = components.components(lines, provenance.describe(), functorch, environment)
    key_notes.note(kind, key, graph, sys.modules["torch._inductor.codecache"].cache_dir(), parts)
