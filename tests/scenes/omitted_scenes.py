"""Programs that a user edits between two starts, at a place that torch's cache keys leave out.

Each of CASES is a function of the ``edition`` of its source, 0 or 1, and returns a number: that of eager mode is right.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

CASES: dict[str, Callable[[int], Any]] = {}


def case(function):
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def run(name, edition):
    """What the case gives, compiled and in eager mode, and what torch has looked up."""
    import torch
    from torch._dynamo.utils import counters

    counters.clear()
    compiled = CASES[name](edition, torch.compile)
    hits = counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]
    return {"compiled": compiled, "eager": CASES[name](edition, lambda function: function), "hits": list(hits)}


@functools.cache
def _source(name, text):
    """A module of this ``text``, that torch finds the source of."""
    import linecache

    module = types.ModuleType(name)
    module.__file__ = f"/nowhere/{name}.py"
    linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
    sys.modules[name] = module
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module


def _op(implementation, fake, *, schema="(Tensor x) -> Tensor", mutates=()):
    import torch

    name = f"shop::{implementation.__name__}"
    found = torch.library.custom_op(name, implementation, schema=schema, mutates_args=mutates)
    found.register_fake(fake)
    return found


@functools.cache
def _double_into(edition):
    def double_into(x, out):
        out.copy_(x * 2)

    schema = f"(Tensor x, Tensor{'(a!)' if edition else ''} out) -> ()"
    return _op(double_into, lambda x, out: None, schema=schema, mutates=("out",) if edition else ())


@case
def mutates_args(edition, compiler):
    """The op states from edition 1 on that it writes to an argument."""
    import torch

    op = _double_into(edition)

    def function(x):
        out = torch.zeros_like(x)
        op(x, out)
        return out + 1

    with torch.no_grad():
        return compiler(function)(torch.ones(4)).sum().item()


@functools.cache
def _library():
    import torch

    return torch.library.Library("shop", "FRAGMENT")


@functools.cache
def _scaled(edition):
    import torch

    library = _library()
    library.define(f"scaled(Tensor x, float by={edition + 2}.0) -> Tensor")
    library.impl("scaled", lambda x, by=edition + 2.0: x * by, "CompositeExplicitAutograd")
    torch.library.register_fake("shop::scaled", lambda x, by=0.0: torch.empty_like(x), lib=library)


@case
def schema_default(edition, compiler):
    """The default of an argument, which the schema has and the graph has not."""
    import torch

    _scaled(edition)
    with torch.no_grad():
        return compiler(lambda x: torch.ops.shop.scaled(x) + 1)(torch.ones(4)).sum().item()


@functools.cache
def _halved(edition):
    import torch

    def halved(x):
        return x.t().clone(memory_format=torch.contiguous_format).t() if edition else x.clone()

    def fake(x):
        return x.new_empty(x.shape[::-1]).t() if edition else torch.empty_like(x)

    return _op(halved, fake)


@case
def fake_stride(edition, compiler):
    """From edition 1 on the op's result has other strides, and its fake implementation says so."""
    import torch

    op = _halved(edition)
    x = torch.arange(12.0).reshape(3, 4)
    with torch.no_grad():
        return (compiler(lambda x: op(x) + 1)(x) * torch.arange(12.0).reshape(3, 4)).sum().item()


@functools.cache
def _narrow(edition):
    import torch

    kind = torch.float64 if edition else torch.float32

    def narrow(x):
        return x.to(kind, copy=True)

    return _op(narrow, lambda x: torch.empty_like(x, dtype=kind))


@case
def fake_dtype(edition, compiler):
    """From edition 1 on the op's result has another type."""
    import torch

    op = _narrow(edition)
    with torch.no_grad():
        return (compiler(lambda x: op(x) + 1)(torch.full((4,), 1 / 3)) * 3).sum().item()


@functools.cache
def _shaped(edition):

    def shaped(x):
        return x.new_ones(4 + 4 * edition)

    return _op(shaped, lambda x: x.new_empty(4 + 4 * edition))


@case
def fake_shape(edition, compiler):
    """From edition 1 on the op's result is larger."""
    import torch

    op = _shaped(edition)
    with torch.no_grad():
        return compiler(lambda x: op(x) * 2)(torch.ones(4)).sum().item()


@functools.cache
def _tripled(edition):
    import torch

    def tripled(x):
        return x.clone()

    op = _op(tripled, torch.empty_like)
    factor = (1.0, 3.0)[edition]
    op.register_autograd(lambda ctx, grad: grad * factor + 0.5)
    return op


@case
def autograd_formula(edition, compiler):
    """The formula of the gradient, as in https://github.com/pytorch/pytorch/issues/144344."""
    import torch

    op = _tripled(edition)
    x = torch.ones(4, requires_grad=True)
    compiler(lambda x: op(x).sin())(x).sum().backward()
    return round(x.grad.sum().item(), 3)


@functools.cache
def _low_level(edition):
    import torch

    library = _library()
    library.define("low_level(Tensor x) -> Tensor")
    library.impl("low_level", lambda x: x.clone(), "CPU")
    torch.library.register_fake("shop::low_level", torch.empty_like, lib=library)
    factor = (1.0, 3.0)[edition]
    torch.library.register_autograd("shop::low_level", lambda ctx, grad: grad * factor + 0.5, lib=library)


@case
def low_level_formula(edition, compiler):
    """The formula of the gradient of an op that a Library defines."""
    import torch

    _low_level(edition)
    x = torch.ones(4, requires_grad=True)
    compiler(lambda x: torch.ops.shop.low_level(x).sin())(x).sum().backward()
    return round(x.grad.sum().item(), 3)


@functools.cache
def _composite(edition):
    library = _library()
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", (lambda x: x * 2) if not edition else (lambda x: x * 3), "CompositeImplicitAutograd")


@case
def composite_body(edition, compiler):
    """What an op is made of, that AOTAutograd traces through."""
    import torch

    _composite(edition)
    with torch.no_grad():
        return compiler(lambda x: torch.ops.shop.composite(x) + 1)(torch.ones(4)).sum().item()


@functools.cache
def _lowered(edition):
    import torch
    from torch._inductor import lowering

    library, factor = _library(), (2.0, 3.0)[edition]
    library.define("lowered(Tensor x) -> Tensor")
    library.impl("lowered", lambda x: x * factor, "CPU")
    torch.library.register_fake("shop::lowered", torch.empty_like, lib=library)
    torch.library.register_autograd("shop::lowered", lambda ctx, grad: grad * 2, lib=library)
    aten = torch.ops.aten

    def lower(x):
        return lowering.lowerings[aten.mul.Tensor](x, factor)

    lowering.register_lowering(torch.ops.shop.lowered.default)(lower)


@case
def python_lowering(edition, compiler):
    """What Inductor makes of an op."""
    import torch

    _lowered(edition)
    with torch.no_grad():
        return compiler(lambda x: torch.ops.shop.lowered(x) + 1)(torch.ones(4)).sum().item()


@functools.cache
def _triton_op(edition):
    import torch

    text = f"""
import torch

def by_triton(x: torch.Tensor) -> torch.Tensor:
    return x * {edition + 2}
"""
    return torch.library.triton_op("shop::by_triton", _source("by_triton", text).by_triton, mutates_args=())


@case
def triton_op_body(edition, compiler):
    """The body of a triton_op, which is traced through, around its kernels."""
    import torch

    op = _triton_op(edition)
    with torch.no_grad():
        return compiler(lambda x: op(x) + 1)(torch.ones(4)).sum().item()


@functools.cache
def _opaque(edition):
    import torch

    @torch._dynamo.allow_in_graph
    def opaque(x):
        return x * (edition + 2)

    sys.modules[__name__].opaque = opaque
    opaque.__qualname__ = "opaque"
    return opaque


@case
def opaque_callable(edition, compiler):
    """A function that is allowed in the graph, below a checkpoint: https://github.com/pytorch/pytorch/pull/194658."""
    import torch
    from torch.utils.checkpoint import checkpoint

    opaque = _opaque(edition)
    x = torch.ones(4, requires_grad=True)
    compiler(lambda x: checkpoint(lambda y: opaque(y).sin(), x, use_reentrant=False) + 1)(x).sum().backward()
    return round(x.grad.sum().item(), 3)


@case
def inlined_helper(edition, compiler):
    """A function that Dynamo inlines, which is in the graph: the key has it."""
    import torch

    helper = _source("helper", f"def helper(x):\n    return x * {edition + 2}\n").helper
    with torch.no_grad():
        return compiler(lambda x: helper(x) + 1)(torch.ones(4)).sum().item()


@contextlib.contextmanager
def as_rank(rank, size=2):
    """In a group of ranks that only this process knows of."""
    import torch.distributed as distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


@case
def rank_in_code(edition, compiler):
    """The rank as a constant, which Dynamo puts into the graph: the key has it."""
    import torch
    import torch.distributed as distributed

    with as_rank(edition), torch.no_grad():
        return compiler(lambda x: x + distributed.get_rank())(torch.ones(4)).sum().item()


def gather(rank, bucketing="all", size=2):
    """Two gathers that Inductor merges into one, at an offset that depends on the rank."""
    import torch
    import torch.distributed._functional_collectives as collectives
    from torch._dynamo.utils import counters

    counters.clear()
    with as_rank(rank, size), torch.no_grad(), torch._inductor.config.patch(bucket_all_gathers_fx=bucketing):

        def function(x, y):
            both = [collectives.all_gather_tensor(each, 0, "0") for each in (x, y)]
            return both[0].sum() + both[1].sum()

        torch.compile(function)(torch.ones(4), torch.ones(4))
    return {"fx": counters["inductor"]["fxgraph_cache_hit"], "aot": counters["aot_autograd"]["autograd_cache_hit"]}


def _edited(text, edition, above=""):
    return _source("edited", above + text.format(edition + 2))


def _ahead(function, example):
    import torch

    from scenes.model_scenes import offering_aot_compile

    with offering_aot_compile(), torch.no_grad():
        return torch.compile(function, fullgraph=True).aot_compile(((example,), {}))


HELPER = """
def helper(x):
    return x * {}

class Layer:
    def forward(self, x):
        return helper(x) + 1

def function(x):
    return Layer().forward(x)
"""


def save_helper(path, edition):
    """An ahead-of-time compiled function that has inlined two others."""
    import torch

    _ahead(_edited(HELPER, edition).function, torch.ones(4)).save_compiled_function(path)


def load_helper(path, edition, plugin=False, above=""):
    """What it gives, and what the functions give now. ``plugin``: one that puts another forward into the layer."""
    import torch

    module = _edited(HELPER, edition, above)
    if plugin:
        module.Layer.forward = lambda self, x: x * 100
    with open(path, "rb") as file, torch.no_grad():
        loaded = torch.compiler.load_compiled_function(file)
        return loaded(torch.ones(4)).sum().item(), module.function(torch.ones(4)).sum().item()


def _of_op(edition):
    import torch

    op = _double_into(edition)
    module = _source("of_op", "def function(x):\n    out = zeros(4)\n    op(x, out)\n    return out + 1\n")
    module.op, module.zeros = op, torch.zeros
    return module.function


def save_op(path, edition):
    """A function that calls a custom op."""
    import torch

    _ahead(_of_op(edition), torch.ones(4)).save_compiled_function(path)


def load_op(path, edition):
    """What it gives, and what the function gives now."""
    import torch

    function = _of_op(edition)
    with open(path, "rb") as file, torch.no_grad():
        loaded = torch.compiler.load_compiled_function(file, f_globals=function.__globals__)
        return loaded(torch.ones(4)).sum().item(), function(torch.ones(4)).sum().item()


RANK = """
import torch.distributed as distributed

def function(x):
    return x + distributed.get_rank()
"""


def save_rank(path, rank):
    """A function that asks for its rank."""
    import torch

    with as_rank(rank):
        _ahead(_edited(RANK, 0).function, torch.ones(4)).save_compiled_function(path)


def load_rank(path, rank):
    """What it gives, and what the function gives in this rank."""
    import torch

    module = _edited(RANK, 0)
    with as_rank(rank), open(path, "rb") as file, torch.no_grad():
        loaded = torch.compiler.load_compiled_function(file)
        return loaded(torch.ones(4)).sum().item(), module.function(torch.ones(4)).sum().item()


def package(edition, op=False):
    """What a function gives with Dynamo's cache of precompiled functions, and what it has found there."""
    import torch
    from torch._dynamo import config
    from torch._dynamo.precompile_context import PrecompileContext
    from torch._dynamo.utils import counters

    function = _of_op(edition) if op else _edited(HELPER, edition).function
    with config.patch(caching_precompile=True), torch.no_grad():
        compiled = torch.compile(function)(torch.ones(4)).sum().item()
        PrecompileContext.save_to_dynamo_cache()
    return compiled, function(torch.ones(4)).sum().item(), counters["dynamo_cache"]["dynamo_cache_hit"]


def run_all():
    """What all cases find that are the same in every start."""
    return {name: run(name, 0)["hits"] for name in CASES if name != "rank_in_code"}


def run_silently(name):
    """A case, whose entries are sealed as they were before seals stated what keys leave out."""
    from safecache import fingerprints

    with mock.patch.object(fingerprints, "build_fingerprint", lambda *_, **__: {}):
        return run(name, 0)


def run_unseen(name, edition):
    """A case whose op was registered before safecache was imported."""
    from safecache.fingerprints import operators

    with mock.patch.object(operators, "note_registration", lambda *_: None):
        return run(name, edition)


def run_unseen_of_torch():
    """An op of torch's for which something was registered before safecache was imported."""
    import torch
    from torch._dynamo.utils import counters

    from safecache.fingerprints import operators

    library = torch.library.Library("aten", "IMPL")
    with mock.patch.object(operators, "note_registration", lambda *_: None):
        library.impl("hardsigmoid", lambda x: x * 3, "AutogradCPU")
    unseen = mock.patch.object(operators._state.now, "unseen", None)
    with mock.patch.object(operators, "_before", None), unseen, torch.no_grad():
        compiled = torch.compile(torch.ops.aten.hardsigmoid)(torch.ones(4)).sum().item()
    return {"compiled": compiled, "hits": counters["aot_autograd"]["autograd_cache_hit"]}


def state_of_an_op_with_a_rule():
    """Which of torch's own ops are changed once a mode has a rule for one, and what is stated of that."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from safecache.fingerprints import operators

    class Mode(TorchDispatchMode):
        pass

    name = "aten.hardsigmoid.default"
    before = sorted(operators.find_changed(None, is_lowered=False)), operators.fingerprint_operator(name).get("body")
    torch.library.register_torch_dispatch(
        "aten::hardsigmoid", Mode, lambda mode, func, types, args, kwargs: args[0] * 3
    )
    return before, (
        sorted(operators.find_changed(None, is_lowered=False)),
        bool(operators.fingerprint_operator(name).get("body")),
    )


def state_of_unseen():
    """What is stated of an op with no more than a kernel and a fake one, and once a gradient is there, all unseen."""
    import torch

    from safecache.fingerprints import operators

    with mock.patch.object(operators, "note_registration", lambda *_: None):
        library = _library()
        library.define("bare(Tensor x) -> Tensor")
        library.impl("bare", lambda x: x.clone(), "CPU")
        torch.library.register_fake("shop::bare", torch.empty_like, lib=library)
        before = operators.fingerprint_operator("shop.bare.default")
        library.impl("bare", lambda x: x.clone(), "Autograd")
        return before, operators.fingerprint_operator("shop.bare.default")


def state_of_unseen_of_server(place):
    """What is stated of an op of a server that runs from its sources, all unseen, and the modules that it is made of."""
    import importlib

    from safecache.fingerprints import operators

    package = Path(place, "sgl_kernel")
    package.mkdir()
    package.joinpath("__init__.py").write_text("")
    package.joinpath("ops.py").write_text(
        "import torch\n"
        "library = torch.library.Library('served', 'DEF')\n"
        "library.define('one(Tensor x) -> Tensor')\n"
        "library.impl('one', torch.empty_like, 'Meta')\n"
        "library.impl('one', lambda x: x.clone(), 'Autograd')\n"
    )
    sys.path.insert(0, place)
    with mock.patch.object(operators, "note_registration", lambda *_: None):
        importlib.import_module("sgl_kernel.ops")
    return operators.fingerprint_operator("served.one.default"), sorted(operators.find_modules(["served.one.default"]))


def states_of_tuned():
    """What is stated of an op, with one configuration to be tried after another."""
    import torch
    from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning

    from safecache.fingerprints import operators

    def tuned(x, by=1):
        return x * by

    op = _op(tuned, lambda x, by=1: torch.empty_like(x), schema="(Tensor x, int by=1) -> Tensor")
    found = []
    for configuration in (CustomOpConfig(by=1), CustomOpConfig(by=2), CustomOpConfig(tuned, by=2)):
        register_custom_op_autotuning(op, configs=[configuration])
        found.append(operators.fingerprint_operator("shop.tuned.default")["body"])
    return found


def key_of_kernel(edition):
    """The cache key of a graph with a Triton kernel of the user's, that has a constant and a helper from outside."""
    import torch
    from torch._functorch._aot_autograd import autograd_cache

    from scenes import omitted_kernels

    kernel = omitted_kernels.make(*((2, "x + 1"), (3, "x + 1"), (2, "x + 2"))[edition])
    keys = []

    def function(x):
        out = torch.empty_like(x)
        kernel[(1,)](x, out)
        return out

    compute = autograd_cache.autograd_cache_key

    def noting(*args, **named):
        keys.append(compute(*args, **named)[0])
        raise KeyboardInterrupt  # before anything is compiled for a GPU that is not there

    places = [autograd_cache, sys.modules["torch._functorch.aot_autograd"]]
    with contextlib.ExitStack() as stack:
        for place in places:
            if hasattr(place, "autograd_cache_key"):
                stack.enter_context(mock.patch.object(place, "autograd_cache_key", noting))
        # Where no GPU is, Dynamo traces no kernels.
        stack.enter_context(mock.patch("torch.utils._triton.has_triton", lambda *_, **__: True))
        with contextlib.suppress(KeyboardInterrupt), torch.no_grad():
            torch.compile(function)(torch.ones(4))
    return keys[-1]
