"""A graph as it is given to Inductor, in bytes: taken in the process that compiles it, and compiled again in another.

The other process gets all that decides about the code and is not in the graph: configurations, modes, threads. If it
comes to another cache key all the same, what it makes says nothing about the entry.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

__all__ = ["UnverifiableError", "recompile", "take"]

_OURS = frozenset({"aten", "prims", "prim", "inductor", "_inductor_test", "higher_order", "rngprims", "quantized"})
# The program's main file, also in what multiprocessing has spawned.
_PROGRAM = ("__main__", "__mp_main__")
_TRITON = "triton_kernel_wrapper"
# Keyword arguments of compile_fx that travel; any other has to be what it is without being named.
_TRAVEL = ("config_patches", "ignore_shape_env", "compile_region_name")
_CONFIGS = ("torch._inductor.config", "torch._functorch.config", "torch._dynamo.config")


class UnverifiableError(Exception):
    """Why a graph cannot be compiled again elsewhere, as a clause."""


def take(graph: Any, inputs: Sequence[Any], rest: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """This thread's call of compile_fx, with these arguments. Raises UnverifiableError, which says why not."""
    torch = sys.modules["torch"]
    unusual = [name for name, value in named.items() if value is not None and name not in _TRAVEL]
    if rest or unusual:
        raise UnverifiableError(f"it is compiled with arguments that do not travel: {', '.join(unusual) or 'unnamed'}")
    if torch.cuda.is_initialized():
        raise UnverifiableError("this process uses a GPU, whose memory is not to be shared with another compile")
    if not isinstance(graph, torch.fx.GraphModule):
        raise UnverifiableError(f"it is no graph but a {type(graph).__name__}")
    modules = sorted(set(_modules(graph)))
    call = {
        "graph": graph,
        "inputs": list(_fake(graph, inputs)),
        "sources": [getattr(node, "_dynamo_source", None) for node in _placeholders(graph)],
        "parameters": getattr(graph, "_param_name_to_source", None),
        "named": {name: named[name] for name in _TRAVEL if named.get(name)},
        "is_dynamic": _is_dynamic(inputs),
        "configs": {name: sys.modules[name].save_config_portable() for name in _CONFIGS if name in sys.modules},
        "modes": _modes(torch),
    }
    pickler = importlib.import_module("torch.fx._graph_pickler")
    with _unchanged(graph) as changes:
        try:
            pickled = pickler.GraphPickler.dumps(call, pickler.Options(ops_filter=None))
        except Exception as error:
            text = f"it cannot be sent to another process: {type(error).__name__}: {error}"
            raise UnverifiableError(text) from error
    # First of all, for without its operators the graph cannot be read.
    return pickle.dumps((modules, changes, pickled))


class _Before(NamedTuple):
    """A graph module before it was pickled: whether its code is generated late, and what was other then, or absent."""

    is_lazy: bool
    values: dict[str, Any]
    absent: list[str]


@contextmanager
def _unchanged(graph: Any) -> Iterator[dict[str, _Before]]:
    """Undo what the block does to the graph's modules, by their names.

    To be pickled, their code is generated anew. What it was, and when it was put there, is part of torch's cache key.
    """
    graphs = {name: module for name, module in graph.named_modules() if hasattr(module, "graph")}
    before = {name: dict(vars(module)) for name, module in graphs.items()}
    classes = {name: dict(vars(type(module))) for name, module in graphs.items()}
    changes: dict[str, _Before] = {}
    try:
        yield changes
    finally:
        for name, module in graphs.items():
            now, was = vars(module), before[name]
            values = {each: was[each] for each in was if now.get(each) is not was[each]}
            changes[name] = _Before(isinstance(module, _lazy()), values, [each for each in now if each not in was])
            _restore(module, was)
            _restore_class(type(module), classes[name])


def _lazy() -> Any:
    return importlib.import_module("torch.fx._lazy_graph_module")._LazyGraphModule


def _restore(module: Any, was: Mapping[str, Any]) -> None:
    vars(module).clear()
    vars(module).update(was)


def _restore_class(kind: type, was: Mapping[str, Any]) -> None:
    """Each graph has a class of its own, that generated code is put into."""
    for name in {**vars(kind)}:
        if name not in was:
            delattr(kind, name)
        elif vars(kind)[name] is not was[name]:
            setattr(kind, name, was[name])


def _placeholders(graph: Any) -> list[Any]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _fake(graph: Any, inputs: Sequence[Any]) -> Iterator[Any]:
    """The inputs without their content, which the graph knows. Raises UnverifiableError."""
    tensor = sys.modules["torch"].Tensor
    for node, given in zip(_placeholders(graph), inputs, strict=True):
        known = node.meta.get("example_value", node.meta.get("val"))
        if known is None and isinstance(given, tensor):
            raise UnverifiableError(f"nothing but its content is known of the input {node.name}")
        yield given if known is None else known


def _is_dynamic(inputs: Sequence[Any]) -> bool:
    """As AOTAutograd decides it, of the inputs as they are given."""
    modes = [mode for each in inputs if (mode := getattr(each, "fake_mode", None)) is not None]
    return bool(modes) and modes[0].shape_env is not None


def _modules(graph: Any) -> Iterator[str]:
    """What defines the custom operators in the graph. Raises UnverifiableError for what another process lacks."""
    torch = sys.modules["torch"]
    for module in graph.modules():
        held = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        if any(isinstance(each, torch.Tensor) for each in held):
            raise UnverifiableError("it holds tensors of its own, whose content is part of it")
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if _TRITON in str(node.target):
                raise UnverifiableError("it calls a Triton kernel of the program's, which no other process has")
            name = str(getattr(node.target, "_name", "") or getattr(node.target, "_qualified_op_name", ""))
            if "::" in name and name.partition("::")[0] not in _OURS:
                yield from _defining(torch, name.partition(".")[0])


def _defining(torch: Any, name: str) -> Iterator[str]:
    """The module that defines an operator with Python; none for one of a library, which whoever imports it loads."""
    definition = importlib.import_module("torch._library.custom_ops").OPDEFS.get(name)
    if definition is not None:
        found = definition._init_fn.__module__
    else:
        # Such as "registered at /home/me/operators.py:12".
        said = torch._C._dispatch_dump(name)
        files = {getattr(module, "__file__", None): each for each, module in list(sys.modules.items())}
        found = next((module for file, module in files.items() if file and f"{file}:" in said), "")
    if found in _PROGRAM:
        raise UnverifiableError(f"the program itself defines the operator {name}, in no module that can be imported")
    if found:
        yield found


def _modes(torch: Any) -> dict[str, Any]:
    devices = ("cpu", "cuda", "xpu")
    return {
        "grad": torch.is_grad_enabled(),
        "autocast": {each: (torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in devices},
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "only warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
    }


def recompile(pickled: bytes) -> None:
    """Make the call again, in a process that does nothing else. Raises UnverifiableError, and what compiling does."""
    torch: Any = importlib.import_module("torch")
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    importlib.import_module("torch._dynamo")
    call = _read(pickled)
    for node, source in zip(_placeholders(call["graph"]), call["sources"], strict=True):
        if source is not None:
            node._dynamo_source = source
    if call["parameters"] is not None:
        call["graph"]._param_name_to_source = call["parameters"]
    context = torch._guards.TracingContext(call["mode"])
    with _as_there(torch, call), torch._guards.tracing(context):
        compile_fx.compile_fx(call["graph"], call["inputs"], **call["named"])


def _read(pickled: bytes) -> dict[str, Any]:
    pickler = importlib.import_module("torch.fx._graph_pickler")
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    mode = importlib.import_module("torch._subclasses").FakeTensorMode(shape_env=shapes.ShapeEnv())
    modules, changes, graph = pickle.loads(pickled)  # noqa: S301  from the parent's memory
    try:
        for name in modules:
            importlib.import_module(name)
        call: dict[str, Any] = pickler.GraphPickler.loads(graph, mode)
    except Exception as error:
        raise UnverifiableError(f"it cannot be read in another process: {type(error).__name__}: {error}") from error
    for name, was in changes.items():
        module = call["graph"].get_submodule(name)
        if was.is_lazy:
            # Each graph module has a class of its own.
            module.__class__ = type(_lazy().__new__(_lazy()))
        vars(module).update(was.values)
        for each in was.absent:
            vars(module).pop(each, None)
    return call | {"mode": mode}


@contextmanager
def _as_there(torch: Any, call: Mapping[str, Any]) -> Iterator[None]:
    modes = call["modes"]
    torch.set_num_threads(modes["threads"])
    torch.set_default_dtype(modes["dtype"])
    if modes["precision"] != torch.get_float32_matmul_precision():  # set to what it is, it counts as set
        torch.set_float32_matmul_precision(modes["precision"])
    torch.use_deterministic_algorithms(modes["deterministic"], warn_only=modes["only warns"])
    torch.utils.deterministic.fill_uninitialized_memory = modes["fill"]
    for device, (is_enabled, dtype) in modes["autocast"].items():
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(modes["grad"]))
        for name, values in call["configs"].items():
            known = importlib.import_module(name)
            stack.enter_context(known.patch({each: values[each] for each in values if hasattr(known, each)}))
        _settle(call["is_dynamic"])
        yield


def _settle(is_dynamic: bool) -> None:
    """Have AOTAutograd see inputs as they were there, compile the backward at once, and ask no remote cache."""
    cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    inductor: Any = importlib.import_module("torch._inductor.compile_fx")
    stock = cache.autograd_cache_key

    def key(graph: Any, inputs: Any, configuration: Any, *rest: Any, **named: Any) -> Any:
        # It is frozen, and this process's own.
        object.__setattr__(configuration, "dynamic_shapes", is_dynamic)
        made = stock(graph, inputs, configuration, *rest, **named)
        object.__setattr__(configuration, "force_non_lazy_backward_lowering", True)
        return made

    cache.autograd_cache_key = key
    cache.should_use_remote_autograd_cache = lambda: False
    inductor.should_use_remote_fx_graph_cache = lambda: False
