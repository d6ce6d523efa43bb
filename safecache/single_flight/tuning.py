"""A kernel's configurations, shared out among the processes that tune it: what one compiles, another leaves for last.

All go through them in the same order, and would wait at each of them for whoever is there first.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from safecache import compiles, single_flight
from safecache.patching.hook import hook
from safecache.session import Part
from safecache.settings import config as settings

__all__ = [
    "compile_config",
    "make_precompile_fn",
    "measure",
    "order_for_process",
    "precompile_config",
    "precompile_worker",
    "share_configurations",
]

_T = TypeVar("_T")


class _Tuning:
    """Configurations of ``tuner``, requested one after the other; ``_made``: what was compiled before its turn."""

    def __init__(self, tuner: object, configs: Sequence[Any]) -> None:
        self.tuner = tuner
        self._left = list(configs)
        self._made: dict[int, Future[Any]] = {}

    def compile_in_turn(self, config: Any, compile: Callable[[Any], Any]) -> Any:
        self._left = [other for other in self._left if other is not config]
        made = self._made.pop(id(config), None) or _try_compile(config, compile)
        if made is not None:
            return made.result()
        for other in self._left:
            if id(other) not in self._made and (ahead := _try_compile(other, compile)) is not None:
                self._made[id(other)] = ahead
        return compile(config)


def _try_compile(config: Any, compile: Callable[[Any], Any]) -> Future[Any] | None:
    """Compile ``config`` and return the outcome; None if another process is compiling it."""
    made: Future[Any] = Future()
    try:
        with single_flight.forbid_waiting():
            made.set_result(compile(config))
    except single_flight.Postponed:
        return None
    except Exception as error:
        made.set_exception(error)
    return made


@contextmanager
def share_configurations(tuner: object, configs: Sequence[Any]) -> Iterator[None]:
    """Share ``configs``, which this thread compiles for ``tuner`` in this order in the block, with other processes."""
    with compiles.override_scope(shared_tuning=_Tuning(tuner, configs) if len(configs) > 1 else None):
        yield


def compile_config(tuner: object, config: Any, compile: Callable[[Any], Any]) -> Any:
    """Return what ``compile`` returns for ``config``, or raise what it raises.

    If another process is compiling ``config``, later ones that nobody is compiling are compiled first.
    """
    current: _Tuning | None = compiles.current.shared_tuning
    return (
        compile(config) if current is None or current.tuner is not tuner else current.compile_in_turn(config, compile)
    )


# Of this process alone: process ids are the same in many containers.
_own: Part[bytes] = Part(lambda: secrets.token_bytes(16))


def order_for_process(choices: Sequence[_T], name: Callable[[_T], str]) -> list[_T]:
    """Return ``choices`` in this process's own order, so that several processes each begin with others.

    The order depends only on the process and the names. Without single flight it is unchanged. For compiles by threads
    or workers, which cannot leave one for last.
    """
    if not settings.current().single_flight:
        return list(choices)
    return sorted(choices, key=lambda choice: hashlib.sha256(_own.now + name(choice).encode()).digest())


@hook(
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.make_precompile_fn(self, choices, name, inputs_key, "
    "precompilation_timeout_seconds=)",  # to 2.14
    "self, choices, name, inputs_key, benchmark_inputs_key=, precompilation_timeout_seconds=",
    why="All ranks precompile the same autotuning choices in the same order, so they meet at each one.",
    issue="https://github.com/pytorch/pytorch/pull/163369",
)
def make_precompile_fn(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """AlgorithmSelectorCache.make_precompile_fn: each process begins with others; the result has no order."""

    def make(choices: Any, *rest: Any, **named: Any) -> Any:
        return wrapped(order_for_process(choices, lambda choice: str(choice.kernel_hash_key())), *rest, **named)

    return make(*args, **kwargs)


_SYNCHRONIZES = (
    "A benchmark waits for the GPU, for ever if collectives in its queue need a rank that waits for this compile."
)
_LINE = "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/runtime/benchmarking.py#L736"


@hook(
    "torch._inductor.runtime.benchmarking:TritonBenchmarker.benchmark_gpu(self, _callable, is_vetted_benchmarking=, "
    "kwargs)",
    why=_SYNCHRONIZES,
    issue=_LINE,
)
@hook(
    "torch._inductor.runtime.benchmarking:InductorBenchmarker.benchmark_gpu(self, _callable, estimation_iters=, "
    "memory_warmup_iters=, benchmark_iters=, max_benchmark_duration=, return_mode=, grad_to_none=, "
    "is_vetted_benchmarking=, kwargs)",  # to 2.12
    "self, _callable, estimation_iters=, memory_warmup_iters=, benchmark_iters=, max_benchmark_duration=, "
    "return_mode=, grad_to_none=, is_vetted_benchmarking=, device_type=, kwargs",
    why=_SYNCHRONIZES,
    issue=_LINE,
)
@hook(
    "torch._inductor.runtime.benchmarking:TorchProfilerBenchmarker.benchmark_gpu(self, _callable, warmup=, rep=, "
    "estimation_iters=, memory_warmup_iters=, max_benchmark_duration=, return_mode=, grad_to_none=, device_type=, "
    "kwargs)",
    why=_SYNCHRONIZES,
    issue=_LINE,
    since=(2, 13),
)
@hook(
    "torch._inductor.runtime.benchmarking:Benchmarker.benchmark_gpu_with_cuda_graph(self, _callable, kwargs)",
    "self, _callable, grad_to_none=, kwargs",  # 2.14
    "self, _callable, grad_to_none=, cudagraph_unroll=, kwargs",
    why=_SYNCHRONIZES,
    issue=_LINE,
    since=(2, 12),
)
def measure(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG001
    """benchmark_gpu of each kind, and benchmark_gpu_with_cuda_graph: none waits long for a rank that measures.

    Each begins by waiting for the GPU.
    """
    with single_flight.release_while_measuring():
        return wrapped(*args, **kwargs)


@hook(
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_worker(self)",
    why="Ranks tune independently, so each compiles all configurations of every kernel, in the same order.",
    issue="https://github.com/pytorch/pytorch/pull/163369",
)
def precompile_worker(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CachingAutotuner._precompile_worker: compiles each configuration, unless they came compiled."""
    with share_configurations(instance, () if instance.compile_results else instance.configs or ()):
        wrapped(*args, **kwargs)


@hook(
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_config(self, cfg)",  # to 2.13
    "self, cfg, *cc_override=",
    why="Each rank compiles the same configuration anew at its turn, though another rank may be compiling it just "
    "then.",
    issue="https://github.com/pytorch/pytorch/pull/163369",
)
def precompile_config(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CachingAutotuner._precompile_config: of one configuration; not again if it was compiled before its turn."""

    def compile(cfg: Any, **named: Any) -> Any:
        return wrapped(cfg, **named) if named else compile_config(instance, cfg, wrapped)

    return compile(*args, **kwargs)
