"""The parts of torch's cache keys, collected where a lookup missed. A hit only costs noting what was requested."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from safecache.places.refs import Ref
from safecache.reporting import graph_names
from safecache.reporting.kinds import Kind

__all__ = ["CONFIGS", "asked", "collect", "lookup", "missed", "missed_graph", "name", "name_of_graph"]


class _Asked(NamedTuple):
    """A call of autograd_cache_key(), and what it returned."""

    compute: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any


def _nothing() -> None:
    """Takes the place of a reference to a compile while there is none."""


class _Thread(threading.local):
    """``config``: the AOTConfig of the current lookup, if there is one; ``asked``: the call that computed its key.

    ``number``: how many lookups the current ``compile`` had before; ``collects``: whether ``lines`` are wanted.
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
    """Context of one lookup in AOTAutograd's cache, which name() and asked() refer to."""
    guards = sys.modules.get("torch._guards")
    context = guards.CompileContext.try_get() if guards is not None else None
    # Compared by identity, not by its id, which starts again at torch._dynamo.reset().
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
    """The name of the graph being looked up in AOTAutograd's cache."""
    return graph_names.of_aot_graph(_thread.config, _thread.number)


def name_of_graph(*, is_backward: bool) -> str:
    """The name of the graph being looked up in the FX graph cache, possibly for an AOTAutograd entry."""
    if _thread.config is not None:
        return f"{name()} {'backward' if is_backward else 'forward'}"
    return graph_names.of_fx_graph(is_backward=is_backward)


def asked(compute: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
    """Note that autograd_cache_key() returned this ``result``."""
    _thread.asked = _Asked(compute, args, kwargs, result)


def collect(pickler: Any, args: Any, kwargs: Any) -> None:
    """Collect the debug lines of a whole key, if a miss asks for them.

    Called at AOTAutogradCachePickler.get_hash, the only place where the graph's names are as they are in the key.
    """
    if _thread.collects:
        _thread.collects = False
        _thread.lines = pickler.debug_lines(*args, **kwargs)


def missed() -> None:
    """Note the parts of the key after a miss in AOTAutograd's cache. Never raises."""
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
    """The debug lines of a key that torch has not printed: computes it a second time."""
    _thread.collects, _thread.lines = True, None
    try:
        request.compute(*request.args, **request.kwargs)
        return _thread.lines or []
    finally:
        _thread.collects, _thread.lines = False, None


def missed_graph(key: str, lines: list[str], *, is_backward: bool) -> None:
    """Note the parts of the key after a miss in the FX graph cache; ``lines``: torch's debug lines. Never raises."""
    graph = name_of_graph(is_backward=is_backward)
    _trying(Kind.FX_ENTRY, lambda: _note(Kind.FX_ENTRY, key, graph, lines, {}))


def _note(kind: Kind, key: str, graph: str, lines: list[str], functorch: dict[str, object]) -> None:
    from safecache.explain import components, key_notes
    from safecache.settings import config
    from safecache.signing import provenance

    environment = config.child_environment()
    parts = components.components(lines, provenance.describe(), functorch, environment)
    parts += tuple(_beside())
    key_notes.note(Ref(kind, key, sys.modules["torch._inductor.codecache"].cache_dir()), graph, parts)


# Config modules, and what the names of their settings begin with among the parts of a key.
CONFIGS = {
    "torch._inductor.config": "inductor config ",
    "torch._inductor.config_comms": "inductor config comms.",
    "torch._functorch.config": "functorch config ",
}


def _beside() -> Iterator[Any]:
    """What no key has, and what says where its parts come from."""
    from safecache.explain import components

    unset = sys.modules["torch.utils._config_module"]._UNSET_SENTINEL
    for module, title in CONFIGS.items():
        if module in sys.modules:
            yield components.chosen(title, sys.modules[module], unset)
    yield from components.places(os.path.dirname(str(sys.modules["torch"].__file__)))
