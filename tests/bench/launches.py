"""Times kernel launches on a GPU, with torch's launcher and ours in turn, in one process. Prints one JSON line.

They go through CachingAutotuner.run, as in a model: in its steady state, where torch >= 2.13 keeps the function to
call, and on the way there, which older torch takes for every launch. Prints ``{}`` without a GPU.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import safecache

_LAUNCHES = 1000
_BLOCKS = 200
_SIZE = 4096


def _live_autotuners() -> list[Any]:
    """The autotuners that launch, without the copies that are kept for the cache."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    return [found for found in gc.get_objects() if type(found) is CachingAutotuner and found.launchers]


def _autotuner(function: Callable[..., Any], **config: bool) -> tuple[Any, tuple[Any, ...]]:
    """The autotuner of a compiled pointwise kernel, and arguments to run it with."""
    from torch._inductor import config as inductor_config

    torch._dynamo.reset()
    known = _live_autotuners()
    x, y = torch.randn(2, _SIZE, device="cuda").unbind()
    with inductor_config.patch(**config):
        compiled = torch.compile(function)
        for _ in range(3):
            out = compiled(x, y)
    (made,) = (found for found in _live_autotuners() if not any(found is other for other in known))
    return made, (x, y, torch.empty_like(out), _SIZE)


def _state(autotuner: Any) -> dict[str, Any]:
    names = ("launchers", "_cached_launcher", "_cache_eligible")
    return {name: vars(autotuner)[name] for name in names if name in vars(autotuner)}


def _stock_state(autotuner: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The state of the same autotuner while safecache is not active."""
    safecache.deactivate()
    vars(autotuner).update(launchers=[autotuner.compile_results[0].make_launcher()])
    if hasattr(autotuner, "_cached_launcher"):
        autotuner._cached_launcher = None
    for _ in range(2):
        autotuner.run(*arguments, stream=torch.cuda.current_stream().cuda_stream)
    safecache.activate()
    return _state(autotuner)


def _nanoseconds(autotuner: Any, arguments: tuple[Any, ...]) -> float:
    run, stream = autotuner.run, torch.cuda.current_stream().cuda_stream
    start = time.perf_counter_ns()
    for _ in range(_LAUNCHES):
        run(*arguments, stream=stream)
    elapsed = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return elapsed / _LAUNCHES


def _compare(autotuner: Any, arguments: tuple[Any, ...], *, steady: bool) -> dict[str, float]:
    ours = _state(autotuner)
    states = {"ours": ours, "stock": _stock_state(autotuner, arguments)}
    if not steady:
        for state in states.values():
            state |= {"_cached_launcher": None, "_cache_eligible": False}
    times: dict[str, list[float]] = {"ours": [], "stock": []}
    for block in range(_BLOCKS):
        for which in ("stock", "ours") if block % 2 else ("ours", "stock"):
            vars(autotuner).update(states[which])
            times[which].append(_nanoseconds(autotuner, arguments))
    vars(autotuner).update(ours)
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["stock"], strict=True))
    return {name: statistics.median(values) for name, values in times.items()} | {"ratio": ratio}


def main() -> None:
    """Print the times."""
    if not torch.cuda.is_available():
        print("{}")
        return
    figures = {}
    # Two functions, because the second must not hit the kernel of the first.
    kinds = {
        "static": (True, lambda x, y: torch.sin(x) * y + 1),
        "ordinary": (False, lambda x, y: torch.cos(x) * y + 1),
    }
    for kind, (static, function) in kinds.items():
        autotuner, arguments = _autotuner(function, use_static_cuda_launcher=static)
        if hasattr(autotuner, "_cached_launcher"):
            figures[f"{kind} launcher, steady state"] = _compare(autotuner, arguments, steady=True)
        figures[f"{kind} launcher"] = _compare(autotuner, arguments, steady=False)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
