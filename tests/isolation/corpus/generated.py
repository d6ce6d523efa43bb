"""Kernels that are in no module that could be imported."""

import linecache
from types import ModuleType

import triton

from isolation.corpus.cases import case

CELL = """
import triton
import triton.language as tl

WIDTH = tl.constexpr(5)

@triton.jit
def helper(x):
    return x * WIDTH

@triton.jit
def in_notebook(p, BLOCK: tl.constexpr):
    # Ünïcödé, as people write it: 100 €
    tl.store(p + tl.arange(0, BLOCK), helper(tl.load(p + tl.arange(0, BLOCK))))
"""


def run_cell(text, name):
    """As a notebook does it: in __main__, with the source in linecache alone."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = ModuleType("__main__")
    exec(compile(text, name, "exec"), vars(module))
    return module


def defined_here():
    @triton.jit
    def in_function(p):
        pass

    return in_function


cell = run_cell(CELL, "<ipython-input-3-5c1b6f0a>")

CASES = [
    case(cell.in_notebook, "*fp32", BLOCK=64),
    case(defined_here(), "*fp32"),
]
