"""torch._inductor.output_code: graphs whose C++ wrapper is a library that they name.

Torch imports this target while it is imported itself: what the hooks need is imported when they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from safecache.patching.hook import verifier

__all__ = ["aot_load", "load_compiled"]


@verifier(
    "torch._export:aot_load(so_path, device)",
    why="Stock torch dlopens any library that the path names, without checking its content or who built it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_export/__init__.py#L170",
)
def aot_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """aot_load: verifies the library, and explains a failure to load it from a noexec mount.

    Raises RefusedArtifactError, in default mode too.
    """

    from safecache.entries import artifacts

    def load(so_path: str, device: str) -> Any:
        with artifacts.raise_on_refusal():
            place = _verify_path(so_path)
        return _explain_call(wrapped, (place, device))

    return load(*args, **kwargs)


@verifier(
    "torch._inductor.output_code:CompiledAOTI.__post_init__(self)",
    why="Stock torch dlopens the library that an entry names by path, although anyone may have replaced it since.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/output_code.py#L1104",
)
def load_compiled(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompiledAOTI.__post_init__: as aot_load(), for the libraries it names, if it is about to load them."""
    files = instance.filename
    if not getattr(sys.modules["torch._inductor.config"], "enable_autograd_for_aot", False):
        return wrapped(*args, **kwargs)  # loads nothing
    named = [files] if isinstance(files, str) else files if isinstance(files, list) else []
    verified = [_verify_path(file) if isinstance(file, str) and file.endswith(".so") else file for file in named]
    if verified == named:
        return _explain_call(wrapped, args)
    instance.filename = verified
    try:
        return _explain_call(wrapped, args)
    finally:
        instance.filename = files


def _verify_path(path: str) -> str:
    from safecache.built_code import generated
    from safecache.places.layout import CodeFile
    from safecache.store import gate

    return gate.verify_load_path(CodeFile(path, generated.find_root(path)))[0]


def _explain_call(wrapped: Callable[..., Any], args: Any) -> Any:
    from safecache import load_errors

    return load_errors.explain_load(wrapped, args, {}, "TORCHINDUCTOR_CACHE_DIR")
