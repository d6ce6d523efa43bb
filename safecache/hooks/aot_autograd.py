"""torch._functorch.aot_autograd: graphs that the AOTAutograd cache is not asked for, since a setting turns it off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache.entries import searches
from safecache.history import graph_names
from safecache.reporting.kinds import Kind, Reason

__all__ = ["should_use_remote_autograd_cache"]


def should_use_remote_autograd_cache(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """should_use_remote_autograd_cache, asked last before a lookup, of which there is none if neither cache is on."""
    remote: bool = wrapped(*args, **kwargs)
    if not remote and not sys.modules["torch._functorch.aot_autograd"].should_use_local_autograd_cache():
        searches.bypass(Kind.AOT_ENTRY, graph_names.of_current, Reason.DISABLED, _what_disables())
    return remote


def _what_disables() -> str:
    if sys.modules["torch._inductor.config"].force_disable_caches:
        return "TORCHINDUCTOR_FORCE_DISABLE_CACHES, or force_disable_caches of torch.compiler.config"
    return "enable_autograd_cache of torch._functorch.config is off"
