"""torch._functorch._aot_autograd: looking up and saving AOTAutograd entries, and why a graph is not cached."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache import compiles
from safecache.entries import artifacts, saving, searches
from safecache.entries.searches import Search
from safecache.integrations import compile_scopes, installation
from safecache.patching.hook import hook, verifier
from safecache.places.refs import Ref
from safecache.ports import Compiling, plugs, tell
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal

__all__ = [
    "autograd_cache_key",
    "handle_save_error",
    "load_artifact",
    "save",
    "should_use_remote_autograd_cache",
    "try_load",
    "write_to_local_cache",
]


@verifier(
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.save(key, entry, remote)",
    why="AOTAutogradCache.save puts the entry to the remote cache outside any try, so a server that refuses it ends "
    "the compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_functorch/_aot_autograd/autograd_cache.py#L1610",
)
def save(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AOTAutogradCache.save: the compile goes on whatever fails in it, even where torch is strict."""

    def save_entry(key: str, entry: Any, *rest: Any, **named: Any) -> None:
        graphs = (getattr(entry, "compiled_fw", None), getattr(entry, "compiled_bw", None))
        # None for a bundled entry, which contains its graphs.
        infos = [getattr(each, "fx_graph_cache_info", None) for each in graphs]
        keys = [info[0] for info in infos if info is not None]
        parts = tuple(Ref(Kind.FX_ENTRY, each) for each in keys) or None
        with saving.guard_save(Ref(Kind.AOT_ENTRY, key), entry, parts):
            if saving.has_unsaved_key(keys):
                saving.abort_save(Reason.INCOMPLETE)
            wrapped(key, entry, *rest, **named)

    save_entry(*args, **kwargs)


@verifier(
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache._handle_save_error(e, remote, is_bypass)",
    why="In strict mode torch raises the PicklingError of a failed save, which ends the compile, although only the "
    "save failed.",
    issue="https://github.com/pytorch/pytorch/issues/180911",
)
def handle_save_error(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AOTAutogradCache._handle_save_error: one warning of ours replaces torch's, and its error in strict mode.

    A graph that torch itself declines to cache still gets torch's log line at level INFO by default.
    """

    def handle(e: Exception, remote: bool, is_bypass: bool) -> None:
        strict = _get_autograd_cache().config.strict_autograd_cache
        if not saving.is_in_attempt() or (is_bypass and not strict):
            wrapped(e, remote, is_bypass)
        else:
            saving.abort_save(Reason.NOT_CACHEABLE if is_bypass else Reason.UNPREPARED, e)

    handle(*args, **kwargs)


@verifier(
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load(mod, args, aot_config, cudagraphs, "
    "boxed_forward_device_index, local, remote)",  # 2.11
    "mod, args, aot_config, compiler_config_extra, local, remote, compile_region_name=",  # 2.12, 2.13
    "mod, args, aot_config, compiler_config_extra, local, remote, act_input_paths=, compile_region_name=",
    why="In strict mode an AOTAutograd hit whose FX graph entry is gone raises FXGraphCacheMiss, where torch could "
    "recompile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_functorch/_aot_autograd/autograd_cache.py#L1257",
)
def try_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTAutogradCache.try_load: a hit whose FX graph entry is gone is a miss, even where torch is strict."""
    given = kwargs["aot_config"] if "aot_config" in kwargs else args[2]
    graph = compiles.override_scope(graph=kwargs["mod"] if "mod" in kwargs else args[0])
    search_for = searches.track_lookup(Ref(Kind.AOT_ENTRY), compiles.name_lookup)
    with events.propagate_strict(), compiles.graph_lookup_scope(given), graph, search_for as search:
        installation.ensure_cache()
        saving.forget_failure()
        result, dropped = compile_scopes.agree_on_lookup(
            search,
            lambda: _load_entry(wrapped, args, kwargs),
            lambda found: _split_result(found, given)[0] is not None,
        )
        _end_search(search, result, given, dropped)
        return result


def _load_entry(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except _get_autograd_cache().FXGraphCacheMiss:
        evidence = "an FX graph entry that it refers to is missing or was refused"
        refusal = Refusal(Reason.ENTRY_MISSING, evidence, "Compiling the graph.")
        report.refuse(refusal, Kind.AOT_ENTRY, "that was found")
    with compiles.override_scope(missing=Kind.AOT_ENTRY):
        return wrapped(*args, **kwargs)


def _end_search(search: Search, result: Any, given: Any, dropped: tuple[Reason, str] | None) -> None:
    """Record how the lookup ended. ``result``: what torch loaded, from 2.13 on together with its configuration.

    The configuration holds the cache key that torch will save under, unless it bypasses the cache.
    """
    loaded, configuration = _split_result(result, given)
    if loaded is not None:
        search.end_as_hit()
        return
    if not plugs.single_flight.is_compiled_elsewhere():
        searches.start_workers()
    key = getattr(getattr(configuration, "cache_info", None), "cache_key", None)
    tell(Compiling(Ref(Kind.AOT_ENTRY, key or ""), compiles.current.graph, compiles.name_lookup))
    if key is None:
        search.end_as_bypass(Reason.UPSTREAM_BYPASS, search.declined or "torch could not use the entry that it found")
    elif (
        dropped is None
        and search.is_taken
        and getattr(_get_autograd_cache().config, "_sync_cache_decision_cross_ranks", False)
    ):
        search.end_as_miss(compile_scopes.OTHER_RANK)
    else:
        search.end_as_miss(dropped)


def _split_result(result: Any, given: Any) -> tuple[Any, Any]:
    return result if isinstance(result, tuple) else (result, given)


@hook(
    "torch._functorch._aot_autograd.autograd_cache:autograd_cache_key(gm, example_inputs, config, fx_config)",  # 2.11
    "mod, example_inputs, config, compiler_config_extra=",  # 2.12, 2.13
    "mod, example_inputs, config, compiler_config_extra=, act_input_paths=",
    why="Torch turns any exception from the cache key into a bypass, whose reason it logs at level INFO alone.",
    issue="https://github.com/pytorch/pytorch/pull/145768",
    copies=("torch._functorch.aot_autograd",),
)
def autograd_cache_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """autograd_cache_key: an exception from it is the reason why torch does not look the graph up."""
    try:
        result = wrapped(*args, **kwargs)
    except Exception as error:
        searches.record_bypass_reason(Kind.AOT_ENTRY, f"{error}" or type(error).__name__)
        raise
    compiles.current.key_call = wrapped, args, kwargs, result
    return result


@verifier(
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache._write_to_local_cache(key, content)",
    why="Before 2.15 an OSError from writing the entry ends the compile in strict mode.",
    issue="https://github.com/pytorch/pytorch/pull/196189",
)
def write_to_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AOTAutogradCache._write_to_local_cache."""

    def write(key: str, content: bytes) -> None:
        saving.write_entry(Ref(Kind.AOT_ENTRY, key, sys.modules["torch._inductor.codecache"].cache_dir()), content)

    write(*args, **kwargs)


def _get_autograd_cache() -> Any:
    return sys.modules["torch._functorch._aot_autograd.autograd_cache"]


@hook(
    "torch._functorch.aot_autograd:should_use_remote_autograd_cache()",
    why="Torch tests at the call site whether the AOTAutograd cache is on, so a disabled cache is skipped without a "
    "trace.",
    issue="https://github.com/pytorch/pytorch/issues/138299",
)
def should_use_remote_autograd_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """should_use_remote_autograd_cache, torch's last question before a lookup, which it skips if no cache is on."""
    remote: bool = wrapped(*args, **kwargs)
    if not remote and not sys.modules["torch._functorch.aot_autograd"].should_use_local_autograd_cache():
        saving.forget_failure()
        searches.note_bypass(Kind.AOT_ENTRY, compiles.name_current, Reason.DISABLED, _find_disabler())
    return remote


def _find_disabler() -> str:
    if sys.modules["torch._inductor.config"].force_disable_caches:
        return "TORCHINDUCTOR_FORCE_DISABLE_CACHES, or force_disable_caches of torch.compiler.config"
    return "enable_autograd_cache of torch._functorch.config is off"


@hook(
    "torch._functorch._aot_autograd.aot_autograd_result:deserialize_bundled_cache_entry(entry)",
    why="A graph compiled ahead of time that crashes its process is loaded and crashes again at every start.",
    issue="https://github.com/vllm-project/vllm/issues/24915",
)
def load_artifact(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """deserialize_bundled_cache_entry, of what was compiled ahead of time: its graphs are on trial, see codecache."""

    def load(entry: Any) -> Any:
        with artifacts.unpack_scope(entry):
            return wrapped(entry)

    return load(*args, **kwargs)
