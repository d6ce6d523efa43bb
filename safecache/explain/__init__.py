"""Why a lookup missed: what keys were made of, and what differs between two of them.

A feature: it may import the core, and no other feature. Here the parts of torch's cache keys, and Triton's, are
collected where a lookup missed.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from safecache import compiles, ports
from safecache.errors import CacheWriteError
from safecache.explain import components, explanations, key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.patching.hook import hook
from safecache.places.refs import Ref
from safecache.ports import Compiling, KernelRequest, Saved
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.session import Part
from safecache.settings import config
from safecache.signing import provenance

__all__ = ["CONFIGS", "compile_seconds", "get_hash", "note", "note_compile", "trying", "why_missed"]


# Inherited by what this process forks.
_PROCESS = secrets.token_hex(4)
# Records of this process, not of its parent, whose compiles are under way, or were never saved.
_waiting: Part[dict[tuple[Kind, str], KeyRecord]] = Part(dict)
_MOST_WAITING = 256


@hook(
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCachePickler.get_hash(self, obj)",
    why="A cache miss does not say which part of the key changed, since torch keeps no parts of earlier keys.",
    issue="https://github.com/pytorch/pytorch/issues/152065",
    since=(2, 12),
)
def get_hash(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """AOTAutogradCachePickler.get_hash: collects the debug lines of a whole key, if a miss asks for them.

    Here alone the graph's names are as they are in the key.
    """
    wanted, compiles.current.key_lines = compiles.current.key_lines, None
    if wanted is not None:
        wanted += instance.debug_lines(*args, **kwargs)
    key: str = wrapped(*args, **kwargs)
    return key


def note_compile(compiling: Compiling) -> None:
    """Observer: note the parts of the key that was missed."""
    ref, call = compiling.ref, compiles.current.key_call
    with trying(ref.kind):
        if ref.kind is Kind.KERNEL:
            request: KernelRequest = compiling.graph
            triton_key, version = sys.modules["triton.runtime.cache"].triton_key(), sys.modules["triton"].__version__
            parts = components.kernel_components(
                request.source, request.backend, request.options, request.variables, triton_key, version
            )
            note(ref, compiling.name(), parts)
        elif ref.kind is Kind.FX_ENTRY and ref.key:
            _note(ref, compiling.name(), compiling.lines, {})
        elif ref.kind is Kind.AOT_ENTRY and call is not None:
            compute, args, kwargs, (key, printed) = call
            lines = list(printed or ())
            if not lines:  # torch has not printed them: the key is computed once more
                with compiles.scope(key_lines=lines):
                    compute(*args, **kwargs)
            settings = sys.modules["torch._functorch.config"].save_config_portable(ignore_private_configs=False)
            _note(Ref(Kind.AOT_ENTRY, key), compiling.name(), lines, settings)


def _note(ref: Ref, name: str, lines: Sequence[str], functorch: dict[str, object]) -> None:
    parts = [*components.components(lines, provenance.describe(), functorch, config.child_environment())]
    # What no key has, and what says where its parts come from.
    unset = sys.modules["torch.utils._config_module"]._UNSET_SENTINEL
    for module, title in CONFIGS.items():
        if module in sys.modules:
            parts.append(components.chosen(title, sys.modules[module], unset))
    parts += components.places(os.path.dirname(str(sys.modules["torch"].__file__)))
    note(ref._replace(root=sys.modules["torch._inductor.codecache"].cache_dir()), name, parts)


# Config modules, and what the names of their settings begin with among the parts of a key.
CONFIGS = {
    "torch._inductor.config": "inductor config ",
    "torch._inductor.config_comms": "inductor config comms.",
    "torch._functorch.config": "functorch config ",
}


def why_missed(ref: Ref, name: str) -> Reason:
    """Why its key is not there, of a graph or kernel of this name."""
    return key_records.why_absent(ref, name)


def compile_seconds(ref: Ref, name: str) -> float:
    """How long the compile took when it was last saved there; 0 where nobody knows."""
    record = key_records.recall(ref, name)
    return record.took if record is not None else 0.0


def note(ref: Ref, name: str, parts: Iterable[Component]) -> None:
    """A lookup has missed, and a compile follows. With SAFECACHE_EXPLAIN=1, say why."""
    record = KeyRecord(ref.kind, ref.key, name, time.time(), tuple(parts), process=_PROCESS)
    waiting = _waiting.now
    while len(waiting) >= _MOST_WAITING:
        with suppress(KeyError, StopIteration):  # another thread has
            del waiting[next(iter(waiting))]
    waiting[ref.kind, ref.key] = record
    ports.observe(Saved, _remember)
    if config.current().explain:
        events.log_line(
            logging.WARNING, f"safecache: miss of the {explanations.explain(record, ref.root, saved=False)}"
        )


def _remember(saved: Saved) -> None:
    record = _waiting.now.pop((saved.ref.kind, saved.ref.key), None)
    if record is not None:
        # The entry itself is in the cache. If there is no more room, the next save reports that.
        with suppress(OSError, CacheWriteError):
            key_records.remember(record, saved.ref.root)


@contextmanager
def trying(kind: Kind) -> Iterator[None]:
    """Look into what torch or Triton have made, in this block; where that fails, say so, and go on without."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        events.report(
            Reason.NOT_EXPLAINED,
            f"the key of a miss ({kind.word}) was not recorded: {text}.",
            cause=f"{kind.word} {type(error).__name__}",
            remedy="safecache explain cannot tell about it; the compile goes on.",
            error=error,
        )
