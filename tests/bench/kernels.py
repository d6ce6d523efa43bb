"""Kernels as autotuners compile them, in some thirty configurations, for a GPU that need not be there (sm_90)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import CompiledKernel
from triton.runtime import autotuner, jit

__all__ = ["Job", "compile", "few", "jobs", "tune"]

_TARGET = GPUTarget("cuda", 90, 32)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """One tile of M by N, with K products at a time."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :], mask=(start + inner)[None, :] < k, other=0.0)
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :], mask=columns[None, :] < n, other=0.0)
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def layer_norm(x, y, weight, bias, n, N: tl.constexpr):
    """One row, N elements at a time."""
    x += tl.program_id(0) * n
    y += tl.program_id(0) * n
    total = tl.zeros([N], dtype=tl.float32)
    square = tl.zeros([N], dtype=tl.float32)
    for start in range(0, n, N):
        at = start + tl.arange(0, N)
        value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
        total += value
        square += value * value
    mean = tl.sum(total, axis=0) / n
    scale = 1 / tl.sqrt(tl.sum(square, axis=0) / n - mean * mean + 1e-5)
    for start in range(0, n, N):
        at = start + tl.arange(0, N)
        value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
        made = (value - mean) * scale * tl.load(weight + at, mask=at < n) + tl.load(bias + at, mask=at < n)
        tl.store(y + at, made, mask=at < n)


@triton.jit
def attention(q, k, v, o, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """The forward pass for M queries, N keys at a time."""
    rows, width = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + width[None, :])
    most = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    output = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        at = start + tl.arange(0, N)
        scores = tl.dot(query, tl.load(k + at[None, :] * D + width[:, None]))
        new = tl.maximum(most, tl.max(scores, 1))
        weight = tl.exp(scores - new[:, None])
        old = tl.exp(most - new)
        total = total * old + tl.sum(weight, 1)
        output = output * old[:, None] + tl.dot(weight.to(tl.float16), tl.load(v + at[:, None] * D + width[None, :]))
        most = new
    tl.store(o + rows[:, None] * D + width[None, :], output / total[:, None])


@triton.jit
def wrong_operand(x, y, N: tl.constexpr):
    """Aborts the process that compiles it: ``LLVM ERROR: Invalid $ operand number``."""
    at = tl.arange(0, N)
    made = tl.inline_asm_elementwise("mov.b32 $0, $7;", "=r,r", [tl.load(x + at)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + at, made)


class Job(NamedTuple):
    """One configuration: the kernel, its types and constants, and the options of the compile."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, int]
    options: dict[str, int]


def jobs(*, crashing: bool) -> list[Job]:
    """All configurations; with ``crashing``, a tenth more in between, which abort the compiler."""
    found = list(_sound())
    if crashing:
        types = {"x": "*i32", "y": "*i32", "N": "constexpr"}
        for number in range(0, len(found), 10):
            found.insert(number, Job(wrong_operand, types, {"N": 32 << number // 10}, {}))
    return found


def few() -> list[Job]:
    """Kernels as small as most of a graph's are."""
    small = next(job for job in _sound() if job.kernel is layer_norm)
    sizes = [(n, warps) for n in (128, 256, 512, 1024) for warps in (1, 2, 4, 8)]
    return [small._replace(constants={"N": n}, options={"num_warps": warps}) for n, warps in sizes]


def _sound() -> Iterator[Job]:
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    types |= dict.fromkeys("MNK", "constexpr")
    for m, n, k in ((64, 64, 32), (128, 64, 32), (64, 128, 32), (128, 128, 32), (128, 128, 64)):
        for warps, stages in ((4, 2), (4, 3), (8, 3)):
            yield Job(matmul, types, {"M": m, "N": n, "K": k}, {"num_warps": warps, "num_stages": stages})
    types = dict.fromkeys(("x", "y", "weight", "bias"), "*fp32") | {"n": "i32", "N": "constexpr"}
    for n in (512, 1024, 2048, 4096):
        for warps in (4, 8):
            yield Job(layer_norm, types, {"N": n}, {"num_warps": warps})
    types = dict.fromkeys("qkv", "*fp16") | {"o": "*fp32", "n": "i32"} | dict.fromkeys("MND", "constexpr")
    for m, n in ((64, 32), (64, 64), (128, 32), (128, 64)):
        for warps in (4, 8):
            yield Job(attention, types, {"M": m, "N": n, "D": 64}, {"num_warps": warps})


def tune() -> int:
    """Make Triton tune the matrix product as at a first launch, without running it; the number of configurations."""
    sizes = ((64, 64, 32), (128, 64, 32), (64, 128, 32), (128, 128, 32), (128, 128, 64), (64, 64, 64))
    configs = [
        triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=3) for m, n, k in sizes for warps in (4, 8)
    ]
    tuner = triton.autotune(configs=configs, key=["m", "n", "k"])(matmul)
    with _stand_ins():
        tuner[(1,)](_Tensor("fp16"), _Tensor("fp16"), _Tensor("fp32"), 1024, 1024, 1024)
    return len(configs)


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """A fake GPU, on which a benchmark takes the same time for each way of compiling."""

    def benchmark(call: Any, **_: Any) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    def load(kernel: Any) -> None:
        kernel.module, kernel.function, kernel._run = 1, 1, lambda *_: None

    device = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: _TARGET,
        get_benchmarker=lambda: benchmark,
    )
    with (
        mock.patch.object(autotuner, "driver", SimpleNamespace(active=device)),
        mock.patch.object(jit, "driver", SimpleNamespace(active=device)),
        mock.patch.object(CompiledKernel, "_init_handles", load),
    ):
        yield


class _Tensor:
    """The attributes of a tensor that a launch needs."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 16


def compile(job: Job) -> Any:
    """Compile one configuration. Raises what triton.compile() raises."""
    return triton.compile(
        ASTSource(job.kernel, job.signature, constexprs=job.constants), target=_TARGET, options=job.options
    )
