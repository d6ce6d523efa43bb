"""Times torch_key() and triton_key() in a new process, with safecache and in stock torch. Prints JSON, in seconds.

The first run on a cache writes the record that later runs read.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from typing import Any

import safecache  # noqa: F401  before torch, as in a program


def main() -> None:
    """Time each as the first compile in a process calls it, and then the original that safecache replaced."""
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
