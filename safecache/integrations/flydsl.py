"""FlyDSL, a backend of Inductor with a cache of its own format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache.built_code import sources
from safecache.fs import ownership, private_directory
from safecache.patching.hook import verifier
from safecache.settings import config

__all__ = ["flydsl_dir"]

_VARIABLE = "FLYDSL_RUNTIME_CACHE_DIR"


@verifier(
    "torch._inductor.runtime.flydsl_cache:configure_flydsl_cache_dir()",
    why="Torch points FlyDSL's cache at its own directory, without asking who else can write there.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/flydsl_cache.py#L136",
    since=(2, 15),
)
def flydsl_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """configure_flydsl_cache_dir: FlyDSL reads a format of its own there, so the directory itself has to be trusted.

    Unless the user does, it is one of this process. Compile workers inherit it from their parent's environment.
    """
    wanted, original = config.library_directory(_VARIABLE)
    if sources.is_private(wanted or str(sys.modules["torch._inductor.runtime.flydsl_cache"]._cache_dir())):
        return str(wrapped())
    if original is None or ownership.find_exposure(os.path.dirname(wanted)) is not None:
        wanted = os.path.join(private_directory.get_process_directory(), "flydsl_compile_cache")
        config.set_library_directory(_VARIABLE, wanted)
    return wanted
