"""Kernels of Gluon, whose globals include layouts."""

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language import nvidia  # noqa: F401

from isolation.corpus.cases import case

LAYOUT = ttgl.constexpr(ttgl.BlockedLayout([1], [32], [4], [0]))
SHARED = ttgl.constexpr(ttgl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def copied(x):
    memory = ttgl.allocate_shared_memory(x.dtype, x.shape, SHARED, x)
    return memory.load(LAYOUT)


@gluon.jit
def copy(source, target, n, BLOCK: ttgl.constexpr):
    offsets = ttgl.program_id(0) * BLOCK + ttgl.arange(0, BLOCK, LAYOUT)
    ttgl.store(target + offsets, copied(ttgl.load(source + offsets, offsets < n)), offsets < n)


@gluon.jit
def two_dimensional(p, layout: ttgl.constexpr, M: ttgl.constexpr, N: ttgl.constexpr):
    rows = ttgl.arange(0, M, ttgl.SliceLayout(1, layout))
    columns = ttgl.arange(0, N, ttgl.SliceLayout(0, layout))
    offsets = rows[:, None] * N + columns[None, :]
    x = ttgl.load(p + offsets)
    ttgl.store(p + offsets, x / ttgl.sum(x, axis=1)[:, None])


TILED = ttgl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])

CASES = [
    case(copy, "*fp32 *fp32 i32", BLOCK=256),
    case(two_dimensional, "*fp32", layout=TILED, M=16, N=64, maxnreg=64),
]
