"""What the hashes of torch and of Triton cost a process, by safecache and by stock: prints JSON, in seconds.

The first process that is run on a cache makes their record.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from typing import Any

import safecache  # noqa: F401  before torch, as in a program


def main() -> None:
    """Call each as torch's first compile in a process does, and then what safecache has put it in the place of."""
    from torch._inductor.codecache import torch_key

    functions = [torch_key]
    if importlib.util.find_spec("triton") is not None:
        from triton.runtime.cache import triton_key

        functions.append(triton_key)
    times = [{"ours": _seconds(function), "stock": _seconds(function.__wrapped__)} for function in functions]
    print(json.dumps(dict(zip(("torch_key()", "triton_key()"), times, strict=False))))


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
