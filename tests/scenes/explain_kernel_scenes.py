"""Scenes of one compile by Triton, as it is or after a change of its key, for a GPU that need not be there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from unittest import mock

SIGNATURE = {"source": "*fp32", "destination": "*fp32", "count": "i32", "BLOCK": "constexpr"}


def kernel_of(path):
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scale


def compile_scale(path, block=128, arch=90, variables=None, triton_key=None, signature=None, aligned=False, **options):
    """Whether it had to be compiled. ``path``: of a module with the kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import cache

    attributes = {(0,): [["tt.divisibility", 16]]} if aligned else {}
    source = ASTSource(kernel_of(path), SIGNATURE | (signature or {}), constexprs={"BLOCK": block}, attrs=attributes)
    made = []
    make = ASTSource.make_ir
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, variables or {}))
        stack.enter_context(
            mock.patch.object(ASTSource, "make_ir", lambda *rest, **named: made.append(1) or make(*rest, **named))
        )
        if triton_key is not None:
            stack.enter_context(mock.patch.object(cache, "triton_key", lambda: triton_key))
        triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return bool(made)
