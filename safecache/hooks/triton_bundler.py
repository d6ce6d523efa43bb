"""torch._inductor.triton_bundler: what is put aside for a cache entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safecache import saving

__all__ = ["put_static_autotuner"]


def put_static_autotuner(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """TritonBundler.put_static_autotuner: strips an autotuner, copies it and restores it, also if the copy fails."""

    def put(key: str, kernel: Any) -> None:
        before, function_before = vars(kernel).copy(), vars(kernel.fn).copy()
        try:
            wrapped(key, kernel)
        except BaseException as error:
            vars(kernel).update(before)
            vars(kernel.fn).update(function_before)
            if not isinstance(error, Exception):
                raise
            saving.report_unpicklable(kernel, f"the autotuner of {kernel.fn.__name__}", error)

    put(*args, **kwargs)
