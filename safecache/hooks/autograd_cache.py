"""torch._functorch._aot_autograd.autograd_cache: the saves and loads of AOTAutograd entries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache import loading, saving
from safecache.hooks import cache_dir_utils, torch_keys
from safecache.reasons import Reason
from safecache.seal import Kind

__all__ = ["handle_save_error", "save", "try_load", "write_to_local_cache"]


def save(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AOTAutogradCache.save: whatever goes wrong in it, also where torch is strict, the compile goes on."""

    def save_entry(key: str, entry: Any, *rest: Any, **named: Any) -> None:
        with saving.attempt(Kind.AOT_ENTRY, key, entry):
            if saving.saved_in_vain(_graph_keys(entry)):
                saving.give_up(Reason.INCOMPLETE)
            wrapped(key, entry, *rest, **named)

    save_entry(*args, **kwargs)


def handle_save_error(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AOTAutogradCache._handle_save_error: our one warning in place of torch's, and of its strict error.

    A graph that torch itself does not want to cache stays what it is by default, a line at level INFO.
    """

    def handle(e: Exception, remote: bool, is_bypass: bool) -> None:
        strict = _autograd_cache().config.strict_autograd_cache
        if not saving.in_attempt() or (is_bypass and not strict):
            wrapped(e, remote, is_bypass)
        else:
            saving.give_up(Reason.NOT_CACHEABLE if is_bypass else Reason.UNPREPARED, e)

    handle(*args, **kwargs)


def try_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """AOTAutogradCache.try_load: a hit whose FX graph entry is gone is a miss, also where torch is strict."""
    torch_keys.begin()
    result = _load(wrapped, args, kwargs)
    torch_keys.end(result)
    return result


def _load(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with loading.reading():
        cache_dir_utils.settle()
        try:
            return wrapped(*args, **kwargs)
        except _autograd_cache().FXGraphCacheMiss:
            evidence = "an FX graph entry that it refers to is missing or was refused"
            loading.note(Reason.ENTRY_MISSING, Kind.AOT_ENTRY, "that was found", evidence, "The graph is compiled.")
        with loading.without_candidates(Kind.AOT_ENTRY):
            return wrapped(*args, **kwargs)


def write_to_local_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """AOTAutogradCache._write_to_local_cache."""

    def write(key: str, content: bytes) -> None:
        cache = _autograd_cache().AOTAutogradCache
        root = sys.modules["torch._inductor.codecache"].cache_dir()
        saving.write(cache._get_tmp_dir_for_key(key), root, Kind.AOT_ENTRY, key, content)

    write(*args, **kwargs)


def _autograd_cache() -> Any:
    return sys.modules["torch._functorch._aot_autograd.autograd_cache"]


def _graph_keys(entry: Any) -> list[str]:
    """The FX cache keys that the entry refers to; none for a bundled entry, which holds its graphs."""
    infos = [
        getattr(getattr(entry, part, None), "fx_graph_cache_info", None) for part in ("compiled_fw", "compiled_bw")
    ]
    return [info[0] for info in infos if info is not None]
