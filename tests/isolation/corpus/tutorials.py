"""Kernels of the kinds that Triton's tutorials teach."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from isolation.corpus.cases import case


@triton.jit
def add(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(output_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def softmax(out_ptr, in_ptr, in_stride, out_stride, n_rows, n_cols, BLOCK_SIZE: tl.constexpr, num_stages: tl.constexpr):
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        offsets = tl.arange(0, BLOCK_SIZE)
        mask = offsets < n_cols
        values = tl.load(in_ptr + row * in_stride + offsets, mask=mask, other=-float("inf"))
        numerator = tl.exp(values - tl.max(values, axis=0))
        tl.store(out_ptr + row * out_stride + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Grouped for reuse in L2, as in the third tutorial."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    tl.assume(pid_m >= 0)
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=c_mask)


@triton.jit
def matmul_persistent(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr
):
    """By descriptors that it makes itself."""
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, SMS, flatten=False):
        row, column = (tile // tiles_n) * BM, (tile % tiles_n) * BN
        accumulator = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            accumulator = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, accumulator)
        c_desc.store([row, column], accumulator.to(c_ptr.dtype.element_ty))


@triton.jit
def seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(output_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def layer_norm_forward(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    _mean = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        _mean += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.where(cols < N, tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32) - mean, 0.0)
        _var += x * x
    rstd = 1 / tl.sqrt(tl.sum(_var, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        mask = cols < N
        x_hat = (tl.load(X + cols, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
        tl.store(Y + cols, x_hat * tl.load(W + cols, mask=mask) + tl.load(B + cols, mask=mask), mask=mask)


@triton.jit
def layer_norm_backward(DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """With a lock, for the sums of all rows of a group."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    X += row * stride
    DY += row * stride
    DX += row * stride
    lock_id = row % GROUP
    Lock += lock_id
    Count = Lock + GROUP
    DW = DW + lock_id * N + cols
    DB = DB + lock_id * N + cols
    x = tl.load(X + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - tl.load(Mean + row)) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(DX + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def attention_step(acc, l_i, m_i, q, k_ptrs, v_ptrs, start, stop, N, scale, BLOCK_N: tl.constexpr):
    for begin in tl.range(start, stop, BLOCK_N):
        begin = tl.multiple_of(begin, BLOCK_N)
        qk = tl.dot(q, tl.load(k_ptrs + begin * 64))
        m_ij = tl.maximum(m_i, tl.max(qk, 1) * scale)
        p = tl.math.exp2(qk * scale - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), tl.load(v_ptrs + begin * 64), acc * alpha[:, None])
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def attention(Q, K, V, Out, scale, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr):
    tl.static_assert(BLOCK_N <= 2 * HEAD)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, HEAD)
    keys = tl.arange(0, BLOCK_N)
    q = tl.load(Q + rows[:, None] * HEAD + columns[None, :])
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    k_ptrs = K + keys[None, :] * HEAD + columns[:, None]
    v_ptrs = V + keys[:, None] * HEAD + columns[None, :]
    acc, l_i, m_i = attention_step(acc, l_i, m_i, q, k_ptrs, v_ptrs, 0, N, N, scale * 1.44269504, BLOCK_N)
    tl.store(Out + rows[:, None] * HEAD + columns[None, :], (acc / l_i[:, None]).to(tl.float16))


@triton.jit
def asin(x_ptr, y_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(y_ptr + offsets, libdevice.asin(tl.load(x_ptr + offsets, mask=mask)), mask=mask)


@triton.jit
def grouped_matmul(
    a_ptrs, b_ptrs, c_ptrs, sizes, lds, groups, SMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Of matrices that it finds by pointers in memory."""
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        gm, gn, gk = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        tiles_n = tl.cdiv(gn, BN)
        tiles = tl.cdiv(gm, BM) * tiles_n
        while tile >= last and tile < last + tiles:
            a_ptr = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            rows = ((tile - last) // tiles_n) * BM + tl.arange(0, BM)
            columns = ((tile - last) % tiles_n) * BN + tl.arange(0, BN)
            ks = tl.arange(0, BK)
            a = a_ptr + rows[:, None] * tl.load(lds + g * 3) + ks[None, :]
            b = b_ptr + ks[:, None] * tl.load(lds + g * 3 + 1) + columns[None, :]
            accumulator = tl.zeros((BM, BN), dtype=tl.float32)
            for _ in range(tl.cdiv(gk, BK)):
                accumulator += tl.dot(tl.load(a), tl.load(b))
                a += BK
                b += BK * tl.load(lds + g * 3 + 1)
            tl.store(c_ptr + rows[:, None] * tl.load(lds + g * 3 + 2) + columns[None, :], accumulator.to(tl.float16))
            tile += SMS
        last = last + tiles


@triton.jit
def block_scaled(a_ptr, sa_ptr, b_ptr, sb_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """With microscaling formats, emulated where the GPU has none."""
    m, n, k, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    scale_a = tl.load(sa_ptr + m[:, None] * (K // 32) + s[None, :])
    scale_b = tl.load(sb_ptr + n[:, None] * (K // 32) + s[None, :])
    c = tl.dot_scaled(a, scale_a, "e5m2", b, scale_b, "e5m2")
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


TILE = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "ACTIVATION": ""}
RELU = TILE | {"ACTIVATION": "leaky_relu"}
INTS = "i32 i32 i32 i32 i32 i32 i32 i32 i32"

CASES = [
    case(add, "*fp32 *fp32 *fp32 i32", BLOCK_SIZE=1024),
    case(add, "*bf16 *bf16 *bf16 i64", BLOCK_SIZE=256, num_warps=2, name="add_bf16", aligned=False),
    case(softmax, "*fp32 *fp32 i32 i32 i32 i32", BLOCK_SIZE=1024, num_stages=2, num_warps=8),
    case(matmul, f"*fp16 *fp16 *fp16 {INTS}", **TILE),
    case(matmul, f"*fp16 *fp16 *fp16 {INTS}", **RELU, num_warps=8, num_stages=2, name="matmul_relu"),
    case(matmul, f"*fp8e5 *fp8e5 *fp16 {INTS}", **TILE, num_warps=4, num_stages=4, name="matmul_fp8"),
    case(matmul, f"*fp32 *fp32 *fp32 {INTS}", **TILE, arch=80, maxnreg=128, name="matmul_tf32_sm80"),
    case(matmul, f"*fp16 *fp16 *fp16 {INTS}", **TILE, num_ctas=2, name="matmul_two_ctas"),
    case(matmul_persistent, "*fp16 *fp16 *fp16 i32 i32 i32", BM=64, BN=32, BK=64, SMS=132, num_warps=4),
    case(seeded_dropout, "*fp32 *fp32 i32 fp32 i32", BLOCK_SIZE=512),
    case(layer_norm_forward, "*fp16 *fp16 *fp16 *fp16 *fp32 *fp32 i32 i32 fp32", BLOCK_SIZE=256),
    case(layer_norm_backward, "*fp16 *fp16 *fp16 *fp16 *fp16 *fp16 *fp32 *fp32 *i32 i32 i32", GROUP=64, BLOCK=256),
    case(attention, "*fp16 *fp16 *fp16 *fp16 fp32 i32", BLOCK_M=64, BLOCK_N=32, HEAD=32),
    case(asin, "*fp32 *fp32 i32", BLOCK_SIZE=256),
    case(grouped_matmul, "*i64 *i64 *i64 *i32 *i32 i32", SMS=84, BM=16, BN=16, BK=16),
    case(block_scaled, "*u8 *u8 *u8 *u8 *fp32", M=32, N=16, K=64),
]
