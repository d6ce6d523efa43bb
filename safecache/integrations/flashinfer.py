"""FlashInfer: the objects that it compiles with CuTe DSL and keeps in its workspace."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache.code import sources
from safecache.integrations import cute_dsl
from safecache.patching.hook import verifier

__all__ = ["cute_export", "cute_init", "cute_load"]

_OBJECT = "FlashInfer loads whatever object lies in its workspace if a text beside it states the same versions."


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.__init__(self, module_name, kernel_name, compile_fn, source_sha256)",
    why="FlashInfer takes objects from its workspace without asking who else can write there.",
    issue="https://github.com/flashinfer-ai/flashinfer/blob/v0.7.2/flashinfer/jit/cute_dsl_core.py#L90",
)
def cute_init(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JitSpecCuteDsl.__init__: its module's directory is one of this process alone if others can write there."""
    wrapped(*args, **kwargs)
    instance.module_dir = cute_dsl.reachable_path(instance.module_dir)
    instance.object_path = instance.module_dir / instance.object_path.name


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.try_load(self)",
    why=_OBJECT,
    issue="https://github.com/flashinfer-ai/flashinfer/blob/v0.7.2/flashinfer/jit/cute_dsl_core.py#L145",
)
@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl.load(self)",
    why=_OBJECT,
    issue="https://github.com/flashinfer-ai/flashinfer/blob/v0.7.2/flashinfer/jit/cute_dsl_core.py#L217",
)
def cute_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Quarantine an object that does not verify before JitSpecCuteDsl.try_load, or load, asks whether there is one."""
    path = str(instance.object_path)
    sources.settle_side_file(path, os.path.dirname(path))
    return wrapped(*args, **kwargs)


@verifier(
    "flashinfer.jit.cute_dsl_core:JitSpecCuteDsl._export(self)",
    why="FlashInfer publishes a compiled object without a digest, so no later process can verify it.",
    issue="https://github.com/flashinfer-ai/flashinfer/blob/v0.7.2/flashinfer/jit/cute_dsl_core.py#L249",
)
def cute_export(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """JitSpecCuteDsl._export: attests the object."""
    path = str(instance.object_path)
    before = cute_dsl.identity(path)
    wrapped(*args, **kwargs)
    cute_dsl.attest_if_new(path, before)
