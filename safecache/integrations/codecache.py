"""torch._inductor.codecache and compile_fx: entries of FX graphs, and libraries loaded by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from safecache import compiles, load_errors
from safecache.built_code import exec_directory, lock_guards
from safecache.entries import artifacts, loading, saving, searches
from safecache.integrations import compile_scopes, installation
from safecache.patching.hook import hook, verifier
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.ports import Compiling, Use, plugs, tell
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.store import directories, gate
from safecache.tiers import directory_faults, fallback

__all__ = [
    "cache_hit_post_compile",
    "compile_dll",
    "fx_codegen_and_compile",
    "iterate_over_candidates",
    "load_dll",
    "load_library",
    "load_with_key",
    "prepare_key",
    "save_graph",
    "write_to_local_cache",
]


@verifier(
    "torch._inductor.codecache:GuardedCache.iterate_over_candidates(cls, local, remote_cache, key)",
    why="Stock torch unpickles whatever file lies in the directory of a cache key, and whatever Redis returns for it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L1901",
)
def iterate_over_candidates(
    wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any
) -> Iterator[tuple[Any, bytes, bool]]:
    """GuardedCache.iterate_over_candidates: yields the same triples, for verified entries only."""

    def iterate(local: bool, remote_cache: Any, key: str) -> Iterator[tuple[Any, bytes, bool]]:
        kind = _find_kind(instance)
        if kind is None:
            stock: Iterator[tuple[Any, bytes, bool]] = wrapped(local, remote_cache, key)
            return stock
        if not artifacts.accept_name(kind, key, "given as a key", safe=artifacts.is_plain(key)):
            return iter(())
        installation.ensure_cache()
        ref = Ref(kind, key, _find_root())
        directory_faults.check(ref.root)
        source = loading.Source(ref, _ENTRY_TYPES[kind])
        return loading.look_up_entries(source, local=local, remote=remote_cache)

    return iterate(*args, **kwargs)


@hook(
    "torch._inductor.codecache:FxGraphCache.load_with_key(key, debug_lines, example_inputs, local, remote_cache, "
    "is_backward, constants, evaluate_guards=)",
    why="Each rank decides alone whether the cache hits, and ranks that miss wait in compile-time collectives for "
    "ranks that hit.",
    issue="https://github.com/pytorch/pytorch/pull/193043",
)
def load_with_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FxGraphCache.load_with_key, where torch counts a hit or a miss, in a compile or for an AOTAutograd entry."""

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
        name = partial(compiles.name_graph, is_backward=is_backward)
        with searches.track_lookup(Ref(Kind.FX_ENTRY, key), name) as search:
            # A graph with guards of its own is part of an AOTAutograd entry, which is then compiled as a whole.
            is_part, dropped = evaluate_guards is not None, None
            if is_part:
                result = wrapped(*args, **kwargs)
            else:
                result, dropped = compile_scopes.agree_on_lookup(
                    search, lambda: wrapped(*args, **kwargs), lambda found: found[0] is not None
                )
            graph, info = result
            if graph is not None:
                search.end_as_hit()
                return result
            if not is_part:
                tell(Compiling(search.ref, compiles.current.graph, name, debug_lines))
            if dropped is None and search.is_taken and info.get("cache_status_detailed") == "guard_miss":
                search.end_as_miss((Reason.GUARD_FAILED, "Triton's external libraries, such as libdevice, are others"))
            else:
                search.end_as_miss(dropped)
        return result

    return load(*args, **kwargs)


@hook(
    "torch._inductor.codecache:FxGraphCache.cache_hit_post_compile(graph, cache_info, constants)",
    why="On a cache hit torch emits the Triton bundle outside any try, so an exception there ends the compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L2151",
)
def cache_hit_post_compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FxGraphCache.cache_hit_post_compile, which runs what a graph that was found consists of: its trial begins."""

    def load(graph: Any, cache_info: Any, constants: Any) -> Any:
        found = searches.active_candidates()
        names = [each.ref._replace(root="").name_file(os.path.basename(each.path)).path for each in found]
        artifact = artifacts.name_graph(graph.source_code)
        if artifact:
            names = [artifact]
            artifacts.require_not_crashed(Kind.AOT_GRAPH, artifact, _find_root())
        try:
            use = Use(
                Kind.FX_ENTRY, _find_root(), names, graph, forgives=bool(artifact) and compiles.current.is_unguarded
            )
            return plugs.load_guard.load(use, lambda: wrapped(graph, cache_info, constants))
        except Exception as error:
            # Within an AOTAutograd entry torch compiles for it; alone, it would end the compile.
            is_fx_entry = bool(found) and found[0].ref.kind is Kind.FX_ENTRY
            if not is_fx_entry or plugs.load_guard.is_unrelated(error, _find_root()):
                raise
            found[0].refuse(Reason.FAILED_RUN, f"{type(error).__name__}: {error}")
            return None, cache_info

    return load(*args, **kwargs)


@hook(
    "torch._inductor.codecache:FxGraphCache.prepare_key(gm, example_inputs, fx_kwargs, inputs_to_check, remote)",
    why="Torch logs why a graph has no cache key at level INFO alone, so users see cold starts without a reason.",
    issue="https://github.com/pytorch/pytorch/issues/152065",
)
def prepare_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """FxGraphCache.prepare_key: records a bypass, with torch's reason, if the graph has no cache key."""

    def prepare(gm: Any, example_inputs: Any, fx_kwargs: Any, *rest: Any, **named: Any) -> Any:
        result = wrapped(*args, **kwargs)
        key, info = result
        if key is None:
            name = partial(compiles.name_graph, is_backward=bool(fx_kwargs.get("is_backward")))
            searches.note_bypass(Kind.FX_ENTRY, name, Reason.UPSTREAM_BYPASS, str(info.get("cache_bypass_reason", "")))
        return result

    return prepare(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:FxGraphCache._save_graph(key, compiled_graph, example_inputs, local, remote_cache)",
    why="Torch calls prepare_for_serialization outside the try of _save_graph, so an exception there ends the "
    "compile, although only the save failed.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L2359",
)
def save_graph(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FxGraphCache._save_graph: the compile goes on whatever fails in it."""

    def save(key: str, compiled_graph: Any, *rest: Any, **named: Any) -> None:
        with saving.guard_save(Ref(Kind.FX_ENTRY, key), compiled_graph):
            wrapped(key, compiled_graph, *rest, **named)

    save(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:FxGraphCache._write_to_local_cache(key, content)",
    why="Torch names the temporary file of an entry by process and thread id, which collide between containers that "
    "share a volume.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L626",
)
def write_to_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """FxGraphCache._write_to_local_cache."""

    def write(key: str, content: bytes) -> None:
        saving.write_entry(Ref(Kind.FX_ENTRY, key, _find_root()), content)

    write(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:CppCodeCache._load_library(cls, path, key)",
    why="Stock torch dlopens whatever library lies under the key's name in the cache directory, and dies of a "
    "truncated one.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L3945",
)
def load_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CppCodeCache._load_library: verifies the library, and explains a failure to load it from a noexec mount.

    Raises EntryRefusedError, in default mode too.
    """

    def load(path: str, key: str) -> Any:
        place = exec_directory.find_load_path(CodeFile(path, _find_root()))
        explained = partial(load_errors.explain_load, wrapped, (place, key), {}, "TORCHINDUCTOR_CACHE_DIR")
        root = os.path.join(config.cache_directory() or os.path.dirname(path), "")
        names = [path.removeprefix(root)] if path.startswith(root) else []
        return plugs.load_guard.load(Use(Kind.NATIVE_CODE, root.rstrip("/"), names), explained)

    return load(*args, **kwargs)


@verifier(
    "torch._inductor.codecache:DLLWrapper.__init__(self, lib_path)",
    why="Stock torch dlopens any CUTLASS or Composable Kernel library from the cache directory without checking it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L5076",
)
def load_dll(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """DLLWrapper.__init__, for CUTLASS and Composable Kernel: as load_library(), for a library in the cache."""

    def load(lib_path: str) -> None:
        of_cache = lib_path.startswith(os.path.join(_find_root(), ""))
        file = CodeFile(lib_path, _find_root())
        place = exec_directory.find_load_path(file) if of_cache else exec_directory.place_executable(lib_path)
        load_errors.explain_load(wrapped, (place,), {}, "TORCHINDUCTOR_CACHE_DIR")

    load(*args, **kwargs)


@verifier(
    ("torch._inductor.codecache:CUTLASSCodeCache.compile", "torch._inductor.codecache:ROCmCodeCache.compile"),
    "cls, source_code, dst_file_ext, extra_args=",
    why="Torch skips the build if a file with the library's name exists, so a partial or planted library stays for "
    "good.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L5312",
)
def compile_dll(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CUTLASSCodeCache.compile and ROCmCodeCache.compile: an unattested file is quarantined and built again."""

    def build(source_code: str, dst_file_ext: str, *rest: Any, **named: Any) -> Any:
        _, source = instance.write(source_code, dst_file_ext)
        path = source.removesuffix(instance._SOURCE_CODE_SUFFIX) + dst_file_ext
        is_wanted = []

        def guard(lock: lock_guards.Lock) -> None:
            if not gate.is_attested(CodeFile(path, _find_root())):
                lock.take()
                is_wanted.append(not gate.quarantine_unattested(CodeFile(path, _find_root())))

        with compiles.override_scope(lock_guard=guard):
            result = wrapped(source_code, dst_file_ext, *rest, **named)
        if True in is_wanted and os.path.lexists(path):
            gate.attest_file(CodeFile(path, _find_root()))
            directories.propagate_file(CodeFile(path))
        return result

    return fallback.attempt(lambda: build(*args, **kwargs))


def _find_root() -> str:
    root: str = sys.modules["torch._inductor.codecache"].cache_dir()
    return root


def _find_kind(cache: type) -> Kind | None:
    # By name: AOTAutogradCache is in a module that may not be imported yet.
    names = {base.__name__ for base in cache.__mro__}
    if "FxGraphCache" in names:
        return Kind.FX_ENTRY
    return Kind.AOT_ENTRY if "AOTAutogradCache" in names else None


def _is_fx_entry(entry: Any) -> bool:
    from torch._inductor.output_code import CompiledFxGraph

    return isinstance(entry, CompiledFxGraph)


def _is_aot_entry(entry: Any) -> bool:
    from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult

    return isinstance(entry, GenericAOTAutogradResult)


_ENTRY_TYPES: dict[Kind, Callable[[Any], bool]] = {Kind.FX_ENTRY: _is_fx_entry, Kind.AOT_ENTRY: _is_aot_entry}


@hook(
    "torch._inductor.compile_fx:fx_codegen_and_compile(gm, example_inputs, inputs_to_check, graph_kwargs)",  # 2.11
    "gm, example_inputs, inputs_to_check, compile_region_name=, graph_kwargs",
    why="Torch tests at the call site whether a cache is on, so a compile with disabled caches leaves no trace.",
    issue="https://github.com/pytorch/pytorch/issues/138299",
)
def fx_codegen_and_compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """fx_codegen_and_compile, which every graph that was not found comes to: records what disables the cache, if so."""
    tell(Compiling(Ref(Kind.FX_ENTRY), kwargs["gm"] if "gm" in kwargs else args[0]))
    setting = _find_disabler()
    if setting:
        name = partial(compiles.name_graph, is_backward=bool(kwargs.get("is_backward")))
        searches.note_bypass(Kind.FX_ENTRY, name, Reason.DISABLED, setting)
    searches.start_workers()
    return wrapped(*args, **kwargs)


def _find_disabler() -> str:
    """The setting; "" for a graph that was looked up, or is kept in an AOTAutograd entry or an AOTInductor package."""
    config = sys.modules["torch._inductor.config"]
    bundled = sys.modules["torch._functorch.config"].bundled_autograd_cache
    if sys.modules["torch._inductor.virtualized"].V.aot_compilation:
        return ""
    if config.force_disable_caches:
        return "TORCHINDUCTOR_FORCE_DISABLE_CACHES, or force_disable_caches of torch.compiler.config"
    if bundled or config.fx_graph_cache or sys.modules["torch._inductor.compile_fx"].should_use_remote_fx_graph_cache():
        return ""
    return "fx_graph_cache of torch._inductor.config is off"
