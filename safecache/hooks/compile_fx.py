"""torch._inductor.compile_fx: graphs that are compiled without a lookup, since a setting turns the cache off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from safecache.entries import searches
from safecache.explain import torch_keys
from safecache.reporting.kinds import Kind, Reason

__all__ = ["fx_codegen_and_compile"]


def fx_codegen_and_compile(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """fx_codegen_and_compile, which every graph comes to that was not found."""
    setting = _what_disables()
    if setting:
        name = partial(torch_keys.name_of_graph, is_backward=bool(kwargs.get("is_backward")))
        searches.bypass(Kind.FX_ENTRY, name, Reason.DISABLED, setting)
    return wrapped(*args, **kwargs)


def _what_disables() -> str:
    """The setting; "" for a graph that was looked up, or is kept in an AOTAutograd entry or AOTInductor's package."""
    config = sys.modules["torch._inductor.config"]
    bundled = sys.modules["torch._functorch.config"].bundled_autograd_cache
    if sys.modules["torch._inductor.virtualized"].V.aot_compilation:
        return ""
    if config.force_disable_caches:
        return "TORCHINDUCTOR_FORCE_DISABLE_CACHES, or force_disable_caches of torch.compiler.config"
    if bundled or config.fx_graph_cache or sys.modules["torch._inductor.compile_fx"].should_use_remote_fx_graph_cache():
        return ""
    return "fx_graph_cache of torch._inductor.config is off"
