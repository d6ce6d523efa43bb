"""torch.compiler: mega-caches, and the name of the file that a compiled function is loaded from."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from safecache.patching.hook import hook, verifier
from safecache.reporting import events

__all__ = ["deserialize", "load_compiled_function", "populate_caches"]


@verifier(
    "torch.compiler._cache:CacheArtifactManager.deserialize(serialized_artifacts)",
    why="Only an unkeyed CRC32 guards a mega-cache, so forged artifacts pass and are unpickled at the next lookup.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/utils/_appending_byte_serializer.py#L52",
)
def deserialize(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.deserialize: None for a mega-cache whose content is not what it claims, or is damaged."""
    from safecache.entries import mega_caches

    def parse(serialized_artifacts: bytes) -> Any:
        with events.propagate_strict():
            return wrapped(serialized_artifacts) if mega_caches.accept(serialized_artifacts) else None

    return parse(*args, **kwargs)


@verifier(
    "torch.compiler._cache:CacheArtifactManager.populate_caches(artifacts)",
    why="Torch writes mega-cache artifacts under any key that they name, so a key with ../ writes outside the cache "
    "directory.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/compiler/_cache.py#L324",
)
def populate_caches(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.populate_caches: artifacts that fail verification are left out, of the result too."""
    from safecache.entries import mega_caches
    from safecache.ports import plugs

    def populate(artifacts: dict[str, list[Any]]) -> Any:
        # What processes have died of is set aside before it is written there once more, or it would look as if gone.
        plugs.load_guard.open_cache(importlib.import_module("torch._inductor.runtime.cache_dir_utils").cache_dir())
        with events.propagate_strict():
            return wrapped(mega_caches.select_accepted(artifacts, _find_cache_key))

    return populate(*args, **kwargs)


def _find_cache_key(artifact: Any) -> str:
    """The cache key under which torch writes it: a profile of another job of the scheduler gets that of this job."""
    rewritten = getattr(artifact, "_rewrite_cache_key_for_mega_cache", None)
    return str(artifact.key if rewritten is None else rewritten(artifact.key))


@hook(
    "torch.compiler:load_compiled_function(file, *f_globals=, *external_data=)",
    why="Torch passes on the bytes of the file alone, so an error from a damaged artifact cannot name it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/compiler/__init__.py#L1078",
)
def load_compiled_function(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_compiled_function: notes the file's name for AOTCompiledFunction.deserialize, which verifies it."""

    from safecache.entries import artifacts

    def load(file: Any, **named: Any) -> Any:
        with events.propagate_strict(), artifacts.report_as(str(getattr(file, "name", ""))):
            return wrapped(file, **named)

    return load(*args, **kwargs)
