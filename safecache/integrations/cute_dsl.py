"""CuTe DSL: the objects that Inductor compiles with it and keeps, and what QuACK's need as well."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safecache.built_code import kept_code, sources
from safecache.fs import filesystem
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import provenance
from safecache.store import entry_files, gate
from safecache.tiers.directory_faults import Immovable

__all__ = [
    "attest_if_new",
    "cutedsl_dir",
    "cutedsl_get",
    "cutedsl_set",
    "dump_ir",
    "fail_write",
    "find_reachable_path",
    "identify_file",
    "load_ir",
    "load_object",
    "name_object",
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
    return find_reachable_path(wrapped(*args, **kwargs))


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
            path = _find_cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
            try:
                settle_object(path, path)
            except Immovable:
                return None
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
    """disk_cache_set: attests the object, if one was written, which not every kernel allows.

    An object that cannot be written is reported: torch has it in memory. Raises CacheWriteError in strict mode.
    """

    def put(
        mem_cache: Any,
        module_path: str,
        config_key: Any,
        runtime_key: Any,
        compiled_fn: Any,
        device_index: int = 0,
        device_capability: Any = None,
    ) -> None:
        path = _find_cutedsl_path(module_path, config_key, runtime_key, device_index, device_capability)
        before = identify_file(path)
        try:
            wrapped(mem_cache, module_path, config_key, runtime_key, compiled_fn, device_index, device_capability)
            attest_if_new(path, before, path)
        except OSError as error:
            fail_write(path, error)

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
        wrapped(sources.find_load_path(file_path, is_built=False), *rest, **named)

    load(*args, **kwargs)


_IR = "https://github.com/NVIDIA/cutlass/blob/v4.4.2/python/CuTeDSL/cutlass/base_dsl/cache_helpers.py"


@verifier(
    "cutlass.base_dsl.cache_helpers:load_cache_from_path(dsl_name, file, path=, bytecode_reader=)",
    why="CuTe DSL compiles and runs whatever IR lies under a name below /tmp, and checks no more than a CRC in it.",
    issue=_IR,
    copies=("cutlass.base_dsl.compile_backend",),
)
def load_ir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """load_cache_from_path: IR that nothing attests is quarantined; None, as for a miss, where it cannot be.

    Raises EntryRefusedError for it in strict mode.
    """

    def load(dsl_name: str, file: str, path: str | None = None, **named: Any) -> Any:
        ir = _find_ir_path(dsl_name, file, path)
        try:
            _settle_file(name_object(ir, ir))
        except Immovable:
            return None
        return wrapped(dsl_name, file, os.path.dirname(ir), **named)

    return load(*args, **kwargs)


@verifier(
    "cutlass.base_dsl.cache_helpers:dump_cache_to_path(dsl_name, jit_function, file, path=, bytecode_writer=)",
    why="CuTe DSL saves IR with a CRC alone, so that no reader can tell it from the IR of another function.",
    issue=_IR,
    copies=("cutlass.base_dsl.compile_backend",),
)
def dump_ir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """dump_cache_to_path attests IR before it is published; what cannot be written is reported.

    Raises CacheWriteError for that in strict mode.
    """

    def dump(
        dsl_name: str,
        jit_function: Any,
        file: str,
        path: str | None = None,
        bytecode_writer: Callable[[Any], None] | None = None,
    ) -> None:
        ir = _find_ir_path(dsl_name, file, path)

        def write(target: Any) -> None:
            made = io.BytesIO()
            (bytecode_writer or jit_function.ir_module.operation.write_bytecode)(made)
            gate.attest_file(CodeFile(ir, os.path.dirname(ir)), made.getvalue())
            target.write(made.getvalue())

        try:
            wrapped(dsl_name, jit_function, file, os.path.dirname(ir), write)
        except OSError as error:
            fail_write(ir, error, f"{dsl_name}_CACHE_DIR")

    dump(*args, **kwargs)


def _find_ir_path(dsl_name: str, file: str, path: str | None) -> str:
    directory = path or sys.modules["cutlass.base_dsl.cache_helpers"].get_default_generated_ir_path(dsl_name)
    return os.path.join(sources.secure_cache(os.path.abspath(directory)), f"{dsl_name.lower()}_{file}.mlir")


def _find_cutedsl_path(*key: Any) -> str:
    module = sys.modules["torch._inductor.runtime.cutedsl_cache"]
    return os.path.join(module._cache_dir(), f"{module._make_disk_key(*key)}.o")


def find_reachable_path(directory: Any) -> Path:
    """Return the directory, or one of this process alone if others can write there."""
    return Path(sources.secure_cache(str(directory)))


def identify_file(path: str) -> list[int] | None:
    """Return what tells one file of this name from the next, or None if there is none."""
    return filesystem.get_identity(os.lstat(path)) if os.path.lexists(path) else None


def settle_object(path: str, key: str) -> bool:
    """Quarantine an object that nothing attests; if none is there then, copy the one that is kept by ``key``.

    ``key`` names all that decides about the object but the GPU. Returns whether an object is there. Raises
    EntryRefusedError in strict mode, and Immovable, reported, if the object cannot be quarantined.
    """
    file = name_object(path, key)
    if _settle_file(file):
        return True
    ref = _find_kept_ref(key)
    found = None if ref is None else kept_code.fetch(ref)
    if found is None:
        return False
    gate.attest_file(file, found[0])
    try:
        entry_files.publish(file.path, found[0], file.root)
    except OSError:
        return False  # the package's own object cannot be written either, which it tells
    return True


def name_object(path: str, key: str) -> CodeFile:
    """Return the object as a CodeFile of ``key``: its path alone may state neither its sources nor their versions."""
    root = os.path.realpath(os.path.dirname(path))  # find_load_path() knows it by that
    return CodeFile(os.path.join(root, os.path.basename(path)), root, name="" if key == path else key)


def _settle_file(file: CodeFile) -> bool:
    try:
        return sources.settle_side_file(file.path, file.root, name=file.name)
    except Immovable as error:
        refusal = error.refusal or Refusal(Reason.UNREADABLE, error.evidence)
        report.refuse(refusal, Kind.NATIVE_CODE, file.path, "It cannot be quarantined; every start recompiles it.")
        raise


def fail_write(path: str, error: OSError, variable: str = "TORCHINDUCTOR_CACHE_DIR") -> None:
    """Report that what was compiled cannot be kept at ``path``. Raises CacheWriteError in strict mode.

    ``variable``: what moves the directory.
    """
    report.fail_write(f"write {path}", error, "Each start compiles it anew.", os.path.dirname(path), variable)


def attest_if_new(path: str, before: list[int] | None, key: str) -> None:
    """Attest the object, if it is not the one whose identity was ``before``, and keep a copy by ``key``."""
    after = identify_file(path)
    if after is not None and after != before:
        digest = gate.digest_file(path)
        gate.attest_file(name_object(path, key), digest=digest)
        ref = _find_kept_ref(key)
        if ref is not None:
            kept_code.keep(ref, path, digest)


def _find_kept_ref(key: str) -> Ref | None:
    """Return None as long as nothing says which GPU CuTe DSL compiles for."""
    gpu = config.get_environment().get("CUTE_DSL_ARCH") or provenance.describe()["gpu"]
    return kept_code.locate(f"{gpu}/{key}", ".o") if gpu else None
