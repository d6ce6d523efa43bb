"""DeepGEMM, whose kernels are compiled, looked up and loaded in C++."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache.built_code import device_kernels
from safecache.patching.hook import verifier
from safecache.settings import config

__all__ = ["redirect_kernels"]

_WHY = "DeepGEMM loads any cubin that lies in the directory of a kernel's name, without any check."


@verifier(
    "deep_gemm.cuda_helpers:find_cuda_home()",
    why=_WHY,
    issue="https://github.com/deepseek-ai/DeepGEMM/issues/301",
)
@verifier(
    "vllm.utils.deep_gemm:_import_deep_gemm()",
    why=_WHY,
    issue="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/utils/deep_gemm.py#L183",
)
@verifier(
    "sglang.srt.layers.deep_gemm_wrapper.compile_utils:update_deep_gemm_config(gpu_id)",
    why="SGLang names a directory of its own after it has imported DeepGEMM, which loads any cubin there.",
    issue="https://github.com/sgl-project/sglang/blob/v0.5.23/python/sglang/srt/layers/deep_gemm_wrapper/compile_utils.py#L51",
)
def redirect_kernels(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Redirect DeepGEMM's kernels before the first is looked up: afterwards DeepGEMM finds verified kernels only.

    Raises EntryRefusedError in strict mode for kernels that nobody has sealed.
    """
    result = wrapped(*args, **kwargs)
    default = config.library_directory("DJ_JIT_CACHE_DIR")[0] or os.path.expanduser("~/.dj")
    device_kernels.redirect("DG_JIT_CACHE_DIR", default)
    return result
