"""Kernels that call Python while they are compiled: it runs here, and they travel as what the front end has made."""

import triton
import triton.language as tl
from triton.language.core import _aggregate as aggregate
from triton.runtime.jit import constexpr_function

from isolation.corpus.cases import case

SETTINGS = {"width": 3}


@constexpr_function
def rounded(x):
    return SETTINGS["width"] * (x // SETTINGS["width"])


@tl.core.builtin
def add_one(x, _semantic=None):
    return _semantic.add(x, 1, True)


@aggregate
class Block:
    pointer: tl.tensor
    size: tl.constexpr

    @constexpr_function
    def __init__(self, pointer, size):
        self.pointer = pointer
        self.size = tl.constexpr(size)

    @triton.jit
    def load(self):
        return tl.load(self.pointer + tl.arange(0, self.size))


@triton.jit
def calls_constexpr_function(p, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), rounded(BLOCK))


@triton.jit
def helper(p, BLOCK: tl.constexpr):
    return add_one(tl.load(p + tl.arange(0, BLOCK)))


@triton.jit
def calls_builtin_in_helper(p, n, BLOCK: tl.constexpr):
    x = helper(p, BLOCK)
    for i in range(n):
        x += i
    tl.store(p + tl.arange(0, BLOCK), x)


@triton.jit
def has_aggregate(p, BLOCK: tl.constexpr):
    block = Block(p, BLOCK)
    tl.store(p, tl.sum(block.load(), 0))


@triton.jit
def plain(p, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), BLOCK)


class Odd(int):
    """Which JSON would take for an int."""


CASES = [
    case(calls_constexpr_function, "*i32", BLOCK=64, way="lowered"),
    case(calls_builtin_in_helper, "*i32 i32", BLOCK=64, way="lowered"),
    case(has_aggregate, "*fp32", BLOCK=64, way="lowered"),
    case(plain, "*i32", BLOCK=Odd(64), way="lowered", name="int of a class of its own"),
]
