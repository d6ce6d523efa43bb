"""A module of the user's, whose attributes kernels elsewhere use."""

import triton
import triton.language as tl

FACTOR = tl.constexpr(3.5)
UNRELATED = object()


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def twice_scaled(x):
    return scaled(scaled(x))
