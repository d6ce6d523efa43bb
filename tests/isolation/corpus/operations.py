"""Kernels that differ in the operations they use, or in the options that they are compiled with."""

from pathlib import Path

import triton
import triton.language as tl

from isolation.corpus.cases import case


@triton.jit
def atomics(p, counts, BLOCK: tl.constexpr):
    x = tl.load(p + tl.arange(0, BLOCK))
    tl.atomic_add(counts + x, 1, mask=x >= 0, sem="relaxed")
    tl.atomic_max(p, tl.max(x, 0))
    tl.atomic_cas(counts, 0, 1)


@triton.jit
def pointwise(x, y):
    return x + y * 2


@triton.jit
def scans(p, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(p + offsets)
    tl.store(p + offsets, tl.cumsum(x, 0) + tl.associative_scan(x, 0, pointwise) + tl.cumprod(x, 0, reverse=True))


@triton.jit
def sorts(p, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.sort(tl.load(p + offsets), descending=True)
    tl.store(p + offsets, tl.flip(x, 0))


@triton.jit
def gathers(p, index, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(p + place, tl.gather(tl.load(p + place), tl.load(index + place), axis=0))


@triton.jit
def arg_reductions(p, at, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.load(p + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    value, index = tl.max(x, 1, return_indices=True)
    tl.store(at + tl.arange(0, ROWS), index + tl.argmin(x, 1) + value.to(tl.int32))


@triton.jit
def welford(mean, m2, weight, other_mean, other_m2, other_weight):
    delta = other_mean - mean
    total = weight + other_weight
    return mean + delta * other_weight / total, m2 + other_m2 + delta * delta * weight * other_weight / total, total


@triton.jit
def variance(p, BLOCK: tl.constexpr):
    x = tl.load(p + tl.arange(0, BLOCK))
    mean, m2, weight = tl.reduce((x, tl.zeros_like(x), tl.full([BLOCK], 1.0, tl.float32)), 0, welford)
    tl.store(p, mean + m2 / weight)


@triton.jit
def inline_assembly(p, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(p + offsets)
    y = tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $1, 3;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(p + offsets, y)


@triton.jit
def host_descriptor(source, out, BLOCK: tl.constexpr):
    """The argument is a descriptor that the host has made."""
    out.store([0, 0], source.load([BLOCK, 0]) + 1)


@triton.jit
def shapes(p, BLOCK: tl.constexpr):
    x = tl.load(p + tl.arange(0, BLOCK)).reshape(BLOCK // 4, 2, 2).trans(1, 0, 2)
    left, right = tl.split(x)
    y = tl.join(left, right).permute(1, 0, 2).reshape(BLOCK)
    tl.store(p + tl.arange(0, BLOCK), tl.interleave(y, y).reshape(2, BLOCK).sum(0))


@triton.jit
def prints_and_asserts(p, N: tl.constexpr):
    tl.static_print("compiled for", N)
    tl.static_assert(N > 1, "N")
    for i in tl.static_range(N):
        tl.device_print("value", tl.load(p + i))


@triton.jit
def conditions(p, n, BLOCK: tl.constexpr):
    x = tl.load(p + tl.arange(0, BLOCK))
    i = 0
    while i < n:
        if i % 2 == 0:
            x += 1
        else:
            x *= 2
        i += 1
    if tl.program_id(0) == 0:
        return
    tl.store(p + tl.arange(0, BLOCK), x)


@triton.jit
def float8(p, q, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(p + offsets).to(tl.float8e5, fp_downcast_rounding="rtne")
    tl.store(q + offsets, x.to(tl.uint8, bitcast=True))


@triton.jit
def integers(p, n: tl.uint32, m: tl.int8, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(p + offsets, eviction_policy="evict_last")
    tl.store(p + offsets, tl.umulhi(x.to(tl.uint32, bitcast=True), n).to(tl.int32) // 7 % 3 + (x >> 2) - m)


@triton.jit
def dot(a, b, c, N: tl.constexpr, PRECISION: tl.constexpr):
    offsets = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets), input_precision=PRECISION))


DESCRIBED = {"source": "tensordesc<fp16[64,64]>", "out": "tensordesc<fp16[64,64]>", "BLOCK": "constexpr"}
LIBRARIES = {"libdevice": str(Path(triton.__file__).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc")}
FUSED = {"enable_fp_fusion": False, "enable_reflect_ftz": False}
OPTIONS = {"num_warps": 8, "num_stages": 1, "maxnreg": 64, "debug": True, "ptx_options": "--opt-level 1"}
OPTIONS |= {"launch_pdl": True, "launch_cooperative_grid": True}

CASES = [
    case(atomics, "*i32 *i32", BLOCK=128),
    case(scans, "*fp32", BLOCK=128),
    case(sorts, "*fp32", BLOCK=8),
    case(gathers, "*fp32 *i32", ROWS=16, COLUMNS=16),
    case(arg_reductions, "*fp32 *i32", ROWS=16, COLUMNS=32),
    case(variance, "*fp32", BLOCK=256),
    case(inline_assembly, "*i32", BLOCK=128),
    case(host_descriptor, "x x", BLOCK=64)._replace(signature=DESCRIBED),
    case(shapes, "*fp32", BLOCK=64),
    case(prints_and_asserts, "*fp32", N=2),
    case(conditions, "*fp32 i32", BLOCK=64),
    case(float8, "*fp32 *u8", BLOCK=128),
    case(integers, "*i32 u32 i8", BLOCK=128, num_warps=1),
    case(dot, "*fp32 *fp32 *fp32", N=32, PRECISION="tf32x3", name="dot_tf32x3"),
    case(dot, "*fp32 *fp32 *fp32", N=32, PRECISION="ieee", **FUSED, name="dot_ieee"),
    case(dot, "*fp16 *fp16 *fp32", N=32, PRECISION="tf32", **OPTIONS, name="dot_options"),
    case(dot, "*fp16 *fp16 *fp32", N=32, PRECISION="tf32", arch=75, name="dot_sm75"),
    case(dot, "*fp16 *fp16 *fp32", N=64, PRECISION="tf32", arch=100, name="dot_sm100"),
    case(dot, "*fp16 *fp16 *fp32", N=16, PRECISION="tf32", instrumentation_mode="consan", name="dot_consan"),
    case(integers, "*i32 u32 i8", BLOCK=64, extern_libs=LIBRARIES, name="libraries"),
    case(dot, "*fp16 *fp16 *fp32", N=32, PRECISION="ieee", arch="gfx942", matrix_instr_nonkdim=16, name="dot_gfx942"),
    case(sorts, "*fp32", BLOCK=8, arch="gfx90a", waves_per_eu=2, name="sorts_gfx90a"),
]
