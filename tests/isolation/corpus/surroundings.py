"""Kernels that differ in what they use of their surroundings, and how they come by it."""

import math
import typing
from collections import namedtuple

import triton
import triton.language as tl
from triton.language import sum as total
from triton.language.extra import libdevice
from triton.language.math import exp2

import isolation.corpus.helpers
from isolation.corpus import helpers as aliased
from isolation.corpus.cases import case
from isolation.corpus.helpers import FACTOR as WEIGHT

SIZE = tl.constexpr(4)
KIND = tl.constexpr(tl.float16)
NOTHING = tl.constexpr(None)
INFINITE = tl.constexpr(float("inf"))
NOT_A_NUMBER = tl.constexpr(math.nan)
SHAPE = tl.constexpr((2, 64))
NAME = tl.constexpr("tf32")
Pair = namedtuple("Pair", ["first", "second"])
UNUSED = object()


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


@triton.jit
def constants_of_the_module(p, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(p + offsets) * SIZE * WEIGHT
    x = tl.where(x == INFINITE, 0.0, x)
    x = tl.where(x == NOT_A_NUMBER, math.pi, x)
    if NOTHING is None:
        x = x + SHAPE[0]
    tl.store(p + offsets, x.to(KIND))


@triton.jit
def attributes_of_modules(p, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = isolation.corpus.helpers.scaled(tl.load(p + offsets)) + aliased.FACTOR
    tl.store(p + offsets, aliased.twice_scaled(x))


@triton.jit
def names_of_triton(p, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = libdevice.tanh(exp2(tl.load(p + offsets))) + tl.math.log2(2.0) + math.e
    tl.store(p, total(x, 0))


def make_closure(width, function):
    size = tl.constexpr(width)

    @triton.jit
    def closure(p, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(p + offsets, function(tl.load(p + offsets)) + size)

    return closure


@triton.jit
def leaf(x):
    return x + 1


@triton.jit(noinline=True)
def apart(x):
    return leaf(x) * 2


@triton.jit
def nested(p, BLOCK: tl.constexpr):
    """Helpers of helpers, one of them twice, one of them not inlined."""
    index = tl.program_id(0)
    tl.store(p + index, isolation.corpus.helpers.twice_scaled(leaf(tl.load(p + index))) + apart(index).to(tl.float32))


@triton.jit
def combine(a, b):
    return tl.maximum(a, b) + SIZE * 0


@triton.jit
def reduce_with_function(p, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    x = FUNCTION(tl.reduce(tl.load(p + tl.arange(0, BLOCK)), 0, combine), 2.0)
    tl.store(p, tl.associative_scan(x + tl.zeros([BLOCK], tl.float32), 0, combine).sum())


@triton.jit
def defaults(p, value=1.5, kind: tl.constexpr = tl.float32, function: tl.constexpr = leaf, BLOCK: tl.constexpr = SIZE):
    tl.store(p + tl.arange(0, BLOCK), function(tl.full([BLOCK], value, kind)))


@triton.jit
def default_of_helper(x, by: tl.constexpr = WEIGHT, and_by=2):
    return x * by * and_by


@triton.jit
def uses_defaults(p):
    tl.store(p, default_of_helper(tl.load(p)) + default_of_helper(tl.load(p), 3))


@triton.jit
def tuples(p, pair, settings: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(p + offsets, tl.load(pair[0] + offsets) * pair[1] + settings[0] * settings[1])


@triton.jit
def constants_in_tuples(p, group, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(p + offsets, group[1][1](tl.load(group[0] + offsets)) * group[1][0])


@triton.jit
def named_tuples(p, pair, point: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    made = Pair(first=point.x, second=offsets)
    tl.store(p + made.second, tl.load(pair.first + offsets) * made.first + pair.second + Point(1, 2).y)


def by_size(specialization):
    return f"sized_{specialization.constants['BLOCK']}_{specialization.signature['p'][1:]}"


@triton.jit(repr=by_size)
def with_repr(p, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), 1)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["m"], debug=True)
def with_settings(p, n, m: tl.int64, BLOCK: tl.constexpr):
    tl.device_assert(n > 0, "n")
    tl.store(p + tl.arange(0, BLOCK), n + m)


class Family:
    @staticmethod
    @triton.jit
    def member(p, BLOCK: tl.constexpr):
        tl.store(p + tl.arange(0, BLOCK), leaf(2))


@triton.jit
def shadowed(p, UNUSED, BLOCK: tl.constexpr):
    """An argument hides a global that could not travel."""
    tl.store(p + tl.arange(0, BLOCK), UNUSED)


@triton.jit
def annotated(p: "isolation.corpus.helpers.UNRELATED", x: isolation.corpus.helpers.UNRELATED, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), x)


@triton.jit
def recursive(p, N: tl.constexpr):
    if N > 0:
        recursive(p, N - 1)
        tl.store(p + N, N)


@triton.jit
def optional(p, bias, BLOCK: tl.constexpr):
    x = tl.load(p + tl.arange(0, BLOCK))
    if bias is not None:
        x += tl.load(bias + tl.arange(0, BLOCK))
    tl.store(p + tl.arange(0, BLOCK), x)


@triton.jit
def edited(p, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), 1)


edited._unsafe_update_src(edited.src.replace(", 1)", ", SIZE)"))

PAIR_OF_POINTERS = {"p": "*fp32", "pair": ("*fp32", "fp32"), "settings": "constexpr", "BLOCK": "constexpr"}
NAMED_PAIR = {"p": "*fp32", "pair": Pair("*fp32", "i32"), "point": "constexpr", "BLOCK": "constexpr"}
GROUP = {"p": "*fp32", "group": ("*fp32", ("constexpr", "constexpr")), "BLOCK": "constexpr"}
IN_GROUP = {(1, 1, 0): 3, (1, 1, 1): leaf}

CASES = [
    case(constants_of_the_module, "*fp32", BLOCK=128),
    case(attributes_of_modules, "*fp32", BLOCK=128),
    case(names_of_triton, "*fp32", BLOCK=128),
    case(make_closure(7, leaf), "*fp32", BLOCK=128),
    case(make_closure(8, aliased.scaled), "*fp32", BLOCK=128, name="other closure"),
    case(nested, "*fp32", BLOCK=128),
    case(reduce_with_function, "*fp32", FUNCTION=combine, BLOCK=128),
    case(defaults, "*fp32", value=2.5, kind=tl.float16, function=aliased.scaled, BLOCK=16),
    case(uses_defaults, "*fp32"),
    case(tuples, "*fp32 x", settings=(1.5, 2), BLOCK=64)._replace(signature=PAIR_OF_POINTERS),
    case(named_tuples, "*fp32 x", point=Point(3, -0.0), BLOCK=64)._replace(signature=NAMED_PAIR),
    case(constants_in_tuples, "*fp32 x", constants=IN_GROUP, BLOCK=64)._replace(signature=GROUP),
    case(with_repr, "*fp32", BLOCK=32),
    case(with_settings, "*i64 i32 i64", BLOCK=32),
    case(Family.member, "*fp32", BLOCK=32),
    case(shadowed, "*fp32 fp32", BLOCK=32),
    case(annotated, "*fp32 fp32", BLOCK=32),
    case(recursive, "*i32", N=3),
    case(optional, "*fp32", bias=None, BLOCK=32),
    case(edited, "*i32", BLOCK=32),
]
