"""A script that has Triton's compiler crash again, with nothing but Triton."""

from __future__ import annotations

from typing import Any

__all__ = ["script"]

_HEAD = '''\
"""Has Triton {triton} crash as it did when it made the {stage} of {kernel}. Needs no GPU: python reproduce.py"""

import os

{imports}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), {input!r})
target = GPUTarget({backend!r}, {arch!r}, {warp_size!r})
options = {options!r}
'''

# Not triton.compile(): that takes no IR as it is before the first stage.
_FROM_SOURCE = """
backend = make_backend(target)
options = backend.parse_options(options)
context = ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
module = ir.parse_mlir_module(path, context)
module.context = context
stages = {}
backend.add_stages(stages, options, Language.%s)
metadata = {"target": target, **options.__dict__}
for stage, lower in stages.items():
    print(stage, flush=True)
    module = lower(module, metadata)
"""
_IMPORTS = """\
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend
"""

_FROM_IR = """
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
triton.compile(path, target=target, options=options)
"""
_IMPORTS_FOR_IR = """\
import tempfile

import triton
from triton.backends.compiler import GPUTarget
"""


def script(described: dict[str, Any], options: dict[str, Any], language: str, input: str, stage: str) -> str:
    """What to run beside ``input``: the kernel as the front end has read it, or the IR that was compiled."""
    is_source = input.endswith(".source")
    head = _HEAD.format(
        triton=described["versions"]["triton"],
        stage=stage,
        kernel=described["kernel"],
        imports=_IMPORTS if is_source else _IMPORTS_FOR_IR,
        input=input,
        options=options,
        **described["target"],
    )
    return head + (_FROM_SOURCE % language if is_source else _FROM_IR)
