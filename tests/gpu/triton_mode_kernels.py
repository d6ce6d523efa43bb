"""What triton_modes.py launches; a file, for Triton reads the source of kernels, and a module that it can load anew."""

import triton
import triton.language as tl


@triton.jit
def scale(x, factor: tl.constexpr):
    return x * factor


@triton.jit
def scaled(source, target, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    """With a helper, and a factor that is a constant of the IR."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(target + index, scale(tl.load(source + index, mask).to(tl.float32), FACTOR), mask)


@triton.jit
def softmax(source, target, columns, BLOCK: tl.constexpr):
    """With a reduction, so with shared memory."""
    index = tl.arange(0, BLOCK)
    mask = index < columns
    row = tl.load(source + tl.program_id(0) * columns + index, mask, float("-inf"))
    numerator = tl.exp(row - tl.max(row, 0))
    tl.store(target + tl.program_id(0) * columns + index, numerator / tl.sum(numerator, 0), mask)


# Each gives the same bits, whichever is the faster one.
@triton.autotune([triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)], key=["n"])
@triton.jit
def silu(source, target, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    x = tl.load(source + index, mask).to(tl.float32)
    tl.store(target + index, x / (1 + tl.exp(-x)), mask)
