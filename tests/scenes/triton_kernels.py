"""Kernels as Inductor writes them; a file, for Triton reads their source."""

import triton
import triton.language as tl


@triton.jit
def triton_poi_scale(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    index = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask = index < xnumel
    tl.store(out_ptr0 + index, tl.load(in_ptr0 + index, mask) * 2.0, mask)


@triton.jit
def double(x):
    return x * 2.0


@triton.jit
def user_kernel(in_ptr0, out_ptr0, xnumel, FUNCTION: tl.constexpr, XBLOCK: tl.constexpr):
    """Takes another kernel's function as a meta-parameter."""
    index = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask = index < xnumel
    tl.store(out_ptr0 + index, FUNCTION(tl.load(in_ptr0 + index, mask)), mask)


autotuned_scale = triton.autotune(
    configs=[triton.Config({"XBLOCK": 128}, num_warps=4), triton.Config({"XBLOCK": 256}, num_warps=2)], key=["xnumel"]
)(triton_poi_scale)
