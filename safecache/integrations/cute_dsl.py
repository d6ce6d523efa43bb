"""CuTe DSL: the objects that Inductor compiles with it and keeps, and what QuACK's need as well."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safecache.code import kept_code, sources
from safecache.files import filesystem
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.settings import config
from safecache.signing import provenance
from safecache.store import entry_files, gate

__all__ = [
    "attest_if_new",
    "cutedsl_dir",
    "cutedsl_get",
    "cutedsl_set",
    "identity",
    "load_object",
    "reachable_path",
    "settle_object",
]


@verifier(
    "torch._inductor.runtime.cutedsl_cache:_cache_dir()",
    why="Torch loads CuTe DSL objects from its cache directory, without asking who else can write there.",
    issue="https://github.com/pytorch/pytorch/pull/195610",
    since=(2, 13),
)
def cutedsl_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Path:
    """cutedsl_cache._cache_dir, or a directory of this process alone if others can write there."""
    return reachable_path(wrapped(*args, **kwargs))


@verifier(
    "torch._inductor.runtime.cutedsl_cache:disk_cache_get(mem_cache, module_path, config_key, runtime_key, "
    "device_index=, device_capability=)",
    why="Torch loads whatever object file lies under the key into the process, without any check.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/cutedsl_cache.py#L114",
    since=(2, 13),
)
def cutedsl_get(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """disk_cache_get: an object that is not in this process's memory is only loaded if it is attested."""

    def get(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> Any:
        if (runtime_key, device_index) not in mem_cache:
            path = _cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
            settle_object(path, path)
        return wrapped(mem_cache, module_path, config_key, runtime_key, device_index, device_capability)

    return get(*args, **kwargs)


@verifier(
    "torch._inductor.runtime.cutedsl_cache:disk_cache_set(mem_cache, module_path, config_key, runtime_key, "
    "compiled_fn, device_index=, device_capability=)",
    why="Torch saves a compiled object without a digest, so no reader can tell it from a planted or damaged one.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/cutedsl_cache.py#L153",
    since=(2, 13),
)
def cutedsl_set(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """disk_cache_set: attests the object, if one was written, which not every kernel allows."""

    def put(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        compiled_fn: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> None:
        path = _cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
        before = identity(path)
        wrapped(mem_cache, module_path, config_key, runtime_key, compiled_fn, device_index, device_capability)
        attest_if_new(path, before, path)

    put(*args, **kwargs)


@verifier(
    "cutlass.base_dsl.export.external_binary_module:ExternalBinaryModule.__init__(self, file_path, enable_tvm_ffi=)",
    why="CuTe DSL links whatever object lies in a cache into the process, and unpickles the signature inside it.",
    issue="https://github.com/NVIDIA/cutlass/issues/3162",
)
def load_object(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """ExternalBinaryModule.__init__: verifies an object that lies in a cache.

    Raises EntryRefusedError, in default mode too.
    """

    def load(file_path: str, *rest: Any, **named: Any) -> None:
        wrapped(sources.load_path(file_path, is_built=False), *rest, **named)

    load(*args, **kwargs)


def _cutedsl_path(*key: Any) -> str:
    module = sys.modules["torch._inductor.runtime.cutedsl_cache"]
    return os.path.join(module._cache_dir(), f"{module._make_disk_key(*key)}.o")


def reachable_path(directory: Any) -> Path:
    """Return the directory, or one of this process alone if others can write there."""
    return Path(sources.reachable(str(directory)))


def identity(path: str) -> list[int] | None:
    """Return what tells one file of this name from the next, or None if there is none."""
    return filesystem.identity(os.lstat(path)) if os.path.lexists(path) else None


def settle_object(path: str, key: str) -> bool:
    """Quarantine an object that nothing attests; if none is there then, copy the one that is kept by ``key``.

    ``key`` names all that decides about the object but the GPU. Returns whether an object is there. Raises
    EntryRefusedError in strict mode, and Immovable if the object cannot be quarantined.
    """
    root = os.path.dirname(path)
    if sources.settle_side_file(path, root):
        return True
    ref = _kept_ref(key)
    found = None if ref is None else kept_code.fetch(ref)
    if found is None:
        return False
    gate.attest_file(CodeFile(path, root), found[0])
    try:
        entry_files.publish(path, found[0], root)
    except OSError:
        return False  # the package's own object cannot be written either, which it tells
    return True


def attest_if_new(path: str, before: list[int] | None, key: str) -> None:
    """Attest the object, if it is not the one whose identity was ``before``, and keep a copy by ``key``."""
    after = identity(path)
    if after is not None and after != before:
        digest = gate.digest_file(path)
        gate.attest_file(CodeFile(path, os.path.dirname(path)), digest=digest)
        ref = _kept_ref(key)
        if ref is not None:
            kept_code.keep(ref, path, digest)


def _kept_ref(key: str) -> Ref | None:
    """Return None as long as nothing says which GPU CuTe DSL compiles for."""
    gpu = config.environment().get("CUTE_DSL_ARCH") or provenance.describe()["gpu"]
    return kept_code.locate(f"{gpu}/{key}", ".o") if gpu else None
