"""A kernel as Inductor generates it, with its decorators and with helpers of torch's."""

import os
import sys
import tempfile
from types import ModuleType
from unittest import mock

from torch._inductor.runtime import triton_helpers

from isolation.corpus.cases import case

INDUCTOR = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.persistent_reduction(
    size_hints={'x': 1024, 'r0_': 128},
    reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr2': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32), 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'triton_per_fused_native_layer_norm_0', 'mutated_arg_names': []}
)
@triton.jit
def triton_per_fused_native_layer_norm_0(in_ptr0, in_ptr1, out_ptr2, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 1024
    r0_numel = 128
    R0_BLOCK: tl.constexpr = 128
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = tl.full([R0_BLOCK], True, tl.int1)[None, :]
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 128*x0), xmask, other=0.0)
    tmp24 = tl.load(in_ptr1 + (r0_1), None, eviction_policy='evict_last')
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(xmask, tmp1, 0)
    tmp6 = tl.where(xmask, tmp1, 0)
    tmp7 = tl.sum(tmp6, 1)[:, None].to(tl.float32)
    tmp8 = tl.full([1, 1], 128, tl.int32)
    tmp9 = tmp8.to(tl.float32)
    tmp10 = (tmp7 / tmp9)
    tmp11 = tmp1 - tmp10
    tmp12 = tmp11 * tmp11
    tmp16 = tl.sum(tl.where(xmask, tl.broadcast_to(tmp12, [XBLOCK, R0_BLOCK]), 0), 1)[:, None].to(tl.float32)
    tmp17 = libdevice.rsqrt(tmp16 / tmp9 + tl.full([1, 1], 1e-05, tl.float32))
    tmp18 = triton_helpers.maximum(tmp11 * tmp17, tl_math.abs(tmp24))
    tmp19 = triton_helpers.max2(tmp18, 1)[:, None]
    tl.store(out_ptr2 + (r0_1 + 128*x0), tmp18 * tl_math.exp(tmp19), xmask)
"""

_place = tempfile.TemporaryDirectory()


def load_generated(text):
    """As Inductor does it: a file with the hash of its content for a name, run as a module of a made-up name."""
    path = os.path.join(_place.name, "c3qv5hfnlkzq.py")
    with open(path, "w") as file:
        file.write(text)
    module = ModuleType("torch._inductor.runtime.compile_tasks.c3qv5hfnlkzq")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(compile(text, path, "exec"), vars(module))
    return module


with mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None):
    generated = load_generated(INDUCTOR)

CASES = [
    case(generated.triton_per_fused_native_layer_norm_0.fn, "*fp32 *fp32 *fp32 i32 i32", XBLOCK=8, num_stages=1),
]
