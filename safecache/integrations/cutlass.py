"""CUTLASS, a backend of Inductor: the operations that it caches, and the directory that it imports from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from safecache.fs import private_directory
from safecache.patching.hook import verifier

__all__ = ["fetch_ops", "try_import_cutlass"]


@verifier(
    "torch._inductor.codegen.cutlass.cache:maybe_fetch_ops()",
    "device_type",  # 2.11, 2.12
    why="Torch reads CUTLASS operations from any JSON file in the cache directory, although no released torch "
    "writes one.",
    issue="https://github.com/pytorch/pytorch/pull/154686",
    copies=("torch._inductor.codegen.cutlass.gemm_template",),
)
def fetch_ops(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """maybe_fetch_ops, which reads operations, later made into CUDA source text, from a JSON file in the cache.

    No released torch writes that file, so nothing could attest it: it is ignored, and the operations are generated.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.cache"]
    with mock.patch.object(module, "cache_dir", lambda: os.devnull):  # no file can be there
        return wrapped(*args, **kwargs)


@verifier(
    "torch._inductor.codegen.cutlass.utils:try_import_cutlass()",
    why="Torch leaves a cache directory on sys.path for good, so whoever writes there can add modules.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codegen/cutlass/utils.py#L153",
    copies=(
        "torch._inductor.codegen.cutlass.lib_extensions.evt_extensions",
        "torch._inductor.codegen.cutlass.lib_extensions.gemm_operation_extensions",
        "torch._inductor.codegen.cutlass.serialization",
    ),
)
def try_import_cutlass(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """try_import_cutlass, which puts a cache directory on sys.path for good, for some links that it makes there.

    They go into this process's private directory instead: else whoever can write to the cache could add modules.
    """
    module = sys.modules["torch._inductor.codegen.cutlass.utils"]
    with mock.patch.object(module, "cache_dir", private_directory.get_process_directory):
        return wrapped(*args, **kwargs)
