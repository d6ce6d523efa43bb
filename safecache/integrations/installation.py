"""The installation: the hashes of torch and Triton, which enter every cache key, and their cache directories."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from safecache.built_code import build_keys
from safecache.built_code.build_keys import Installation
from safecache.patching.hook import hook
from safecache.tiers import fallback

__all__ = ["cache_dir", "default_cache_dir", "ensure_cache", "torch_key", "triton_key"]


@hook(
    "torch._inductor.codecache:torch_key()",
    why="Every process hashes all of torch's source files for its cache keys, which is slow on a cold or network disk.",
    issue="https://github.com/pytorch/pytorch/pull/137877",
    copies=("torch._inductor.async_compile", "torch._inductor.compile_worker.subproc_pool"),
)
def torch_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bytes:
    """codecache.torch_key: the SHA-256 (32 bytes) of torch's version and sources."""
    torch = sys.modules["torch"]
    top = os.path.dirname(str(torch.__file__))
    if not _is_stocks(wrapped, top):
        computed: bytes = wrapped(*args, **kwargs)
        return computed
    installation = Installation(top, str(torch.__version__), packages=True)
    return bytes.fromhex(
        build_keys.find_key("torch_key", installation, _find_root, lambda: wrapped(*args, **kwargs).hex())
    )


@hook(
    "triton.runtime.cache:triton_key()",
    why="Every process hashes libtriton.so, hundreds of megabytes, for its cache keys.",
    issue="https://github.com/triton-lang/triton/issues/2008",
    copies=("triton.runtime.autotuner", "torch._inductor.runtime.triton_compat"),
)
def triton_key(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """triton.runtime.cache.triton_key: Triton's version, and the SHA-256 of its compiler and each of its sources."""
    top = os.path.dirname(str(sys.modules["triton"].__file__))
    if not _is_stocks(wrapped, top):
        computed: str = wrapped(*args, **kwargs)
        return computed
    return build_keys.find_key(
        "triton_key", Installation(top, "", packages=False), _find_root, lambda: wrapped(*args, **kwargs)
    )


def _is_stocks(function: Any, top: str) -> bool:
    """Tell whether this is torch's or Triton's own function; a replacement might hash something else each time."""
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return code is not None and str(code.co_filename).startswith(os.path.join(top, ""))


def _find_root() -> str:
    inductor = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    root: str = sys.modules["triton"].knobs.cache.dir if inductor is None else inductor.cache_dir()
    return root


@hook(
    "torch._inductor.runtime.cache_dir_utils:cache_dir()",
    why="Importing torch._dynamo creates the cache directory, so one that cannot be created ends the import.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/cache_dir_utils.py#L20",
    copies=(
        "torch._inductor.codecache",
        "torch._functorch._aot_autograd.autograd_cache",
        "torch._inductor.cpp_builder",
        "torch._inductor.runtime.triton_heuristics",
        "torch._inductor.aoti_eager",
        "torch._inductor.autoheuristic.autoheuristic",
        "torch._inductor.codegen.cutlass.cache",
        "torch._inductor.codegen.cutlass.utils",
        "torch._inductor.codegen.wrapper",
        "torch._inductor.compile_fx",
        "torch._inductor.compiler_bisector",
        "torch._inductor.kernel.flex_gemm.runtime",
        "torch._inductor.runtime.autotune_cache",
        "torch._inductor.runtime.caching.interfaces",
        "torch._inductor.runtime.flydsl_cache",
        "torch._inductor.runtime.runtime_utils",
    ),
)
def cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """cache_dir: a usable one, even where torch asks during its import; strict mode raises only in a compile."""
    _settle_directory(strictly=False)
    return fallback.attempt(lambda: str(wrapped(*args, **kwargs)))


def ensure_cache() -> None:
    """Settle the cache directory as a compile starts: torch keeps copies of cache_dir from before it was patched.

    Raises CacheWriteError in strict mode if the directory cannot be used.
    """
    _settle_directory(strictly=True)


def _settle_directory(*, strictly: bool) -> None:
    fallback.ensure_cache_directory(_find_default, strictly=strictly)


def _find_default() -> str:
    directory: str = sys.modules["torch._inductor.runtime.cache_dir_utils"].default_cache_dir()
    return directory


@hook(
    "torch._inductor.runtime.cache_dir_utils:default_cache_dir()",
    why="Before 2.13 torch raises KeyError for a uid without a passwd entry, as OpenShift and docker --user assign.",
    issue="https://github.com/pytorch/pytorch/issues/140765",
    until=(2, 13),
    copies=("torch._inductor.codecache", "torch._inductor.runtime.runtime_utils"),
)
def default_cache_dir(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str:
    """default_cache_dir: for a uid without a passwd entry, the directory that torch 2.13 uses, ``uid_<n>``.

    OpenShift and ``docker --user`` assign such uids; the errors caught here are those of getpass.getuser.
    """
    try:
        name: str = wrapped(*args, **kwargs)
        return name
    except (KeyError, ModuleNotFoundError, OSError):
        return os.path.join(tempfile.gettempdir(), f"torchinductor_uid_{os.getuid()}")
