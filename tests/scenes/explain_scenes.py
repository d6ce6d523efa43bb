"""Scenes of one compile, as it is or after a change of its key. Of products alone: those take Inductor no compiler."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import types
from unittest import mock

PROGRAM = """
import torch

def product(x, w):
    return (x @ w) @ w

def edited(x, w):
    return (x @ w) @ x
"""


# Of a code object: what a function is called, in full from Python 3.11 on.
NAMES = [name for name in ("co_name", "co_qualname") if hasattr(inspect.currentframe().f_code, name)]


def inputs(shape=(8, 8), dtype="float32", transposed=False, grad=False):
    import torch

    x, w = (torch.ones(shape, dtype=getattr(torch, dtype)) for _ in range(2))
    return (x.t() if transposed else x).requires_grad_(grad), w


@contextlib.contextmanager
def changed(inductor=None, functorch=None, env=None, torch_key=None, custom_pass=None):
    from torch._functorch import config as functorch_config
    from torch._inductor import codecache, config

    from scenes.models import Pass

    with contextlib.ExitStack() as stack:
        stack.enter_context(config.patch(inductor or {}))
        stack.enter_context(functorch_config.patch(functorch or {}))
        stack.enter_context(mock.patch.dict(os.environ, env or {}))
        if torch_key is not None:
            stack.enter_context(mock.patch.object(codecache, "torch_key", lambda: torch_key.encode()))
        if custom_pass is not None:
            stack.enter_context(config.patch(post_grad_custom_pre_pass=Pass(custom_pass)))
        yield


def module(source, name="program"):
    """As that of a file, of which this is the text."""
    made = types.ModuleType(name)
    exec(compile(source, f"/somewhere/{name}.py", "exec"), vars(made))
    return made


def compile_product(function="product", options=None, given=None, dynamic=False, **changes):
    """What of product() was in the caches: of AOTAutograd, and of Inductor."""
    import torch
    from torch._dynamo.utils import counters

    program = module(PROGRAM)
    code = getattr(program, function).__code__.replace(**dict.fromkeys(NAMES, "product"))
    called = types.FunctionType(code, vars(program), "product")
    arguments = inputs(**(given or {}))
    with changed(**changes):
        y = torch.compile(called, options=options, dynamic=dynamic)(*arguments)
        if y.requires_grad:
            y.sum().backward()
    return counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]


def compile_in_parts():
    """As vLLM does: graphs of one function, one after the other, each by standalone_compile."""

    import torch
    from torch._inductor import standalone_compile

    def backend(graph, example_inputs):
        parts = [copy.deepcopy(graph), graph]
        for factor, part in enumerate(parts):
            [product, *_] = [node for node in part.graph.nodes if node.op == "call_function"]
            for _ in range(factor):
                with part.graph.inserting_after(product):
                    part.graph.call_function(torch.neg, (product,))
            part.recompile()
        first, _ = (standalone_compile(part, example_inputs, dynamic_shapes="from_graph") for part in parts)
        return first

    torch.compile(module(PROGRAM).product, backend=backend)(*inputs())
