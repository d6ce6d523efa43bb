"""A Triton kernel with a constant and a helper from outside, made from the text that a user would edit."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

TEXT = """
import triton
import triton.language as tl

FACTOR = tl.constexpr({})

@triton.jit
def helper(x):
    return {}

@triton.jit
def kernel(x, out):
    tl.store(out, helper(tl.load(x)) * FACTOR)
"""


def make(factor, helper):
    """The kernel, of a module that has a file, as Triton wants it."""
    path = Path(tempfile.mkdtemp(), "edited_kernels.py")
    path.write_text(TEXT.format(factor, helper))
    spec = importlib.util.spec_from_file_location("edited_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel
