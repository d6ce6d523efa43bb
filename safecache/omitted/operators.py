"""Custom ops, and functions allowed in graphs: which of them a graph has, and what each of them is now.

Torch's own are covered by its version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from safecache.omitted import functions

__all__ = ["HIDDEN", "OF_TORCH", "UNSEEN", "collectives_in", "named_in", "registered", "stated"]

# Those of torch 2.15; it has some of them registered only when they are first needed.
OF_TORCH = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native", "_native_aot"),
        *("_quantized", "_test", "aten", "c10d", "c10d_functional", "coor", "debug_mode_ops", "debugprims"),
        *("export", "flex_gemm", "flex_lib", "fsdp", "higher_order", "inductor", "inductor_prims", "mempool"),
        *("mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "prim", "prims", "profiler"),
        *("quantization", "quantized", "quantized_decomposed", "rngprims", "sparse", "static_runtime", "streams"),
        "symm_mem",
    )
)
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "c10d", "symm_mem", "_c10d_functional_autograd", "_dtensor")
# Of what Library.impl() registers, what is not traced through, but called when the graph runs.
_OPAQUE = ("CPU", "CUDA", "XPU", "HIP", "MPS", "HPU", "XLA", "PrivateUse1", "CompositeExplicitAutograd")
_CALLABLE = "callable"
# Stated of an op of which something was registered before this process had safecache: these parts are not known then.
UNSEEN, HIDDEN = "unseen", ("autograd", "kernels")

# By qualified name and dispatch key, what Library.impl() was given: the dispatcher does not give it back.
_registered: dict[str, dict[str, Callable[..., Any]]] = {}


def registered(name: str, key: str, function: Callable[..., Any]) -> None:
    """Note that ``function`` was registered for the op of this qualified ``name``, for one dispatch ``key``."""
    if name.partition("::")[0] not in OF_TORCH and key not in _OPAQUE:
        _registered.setdefault(name, {})[key] = function


def named_in(graph: Any) -> tuple[str, ...]:
    """The names of the custom ops in an FX graph and those within it, and of the functions that it calls as they are.

    As ``namespace.name.overload``, and ``callable module:name``.
    """
    return tuple(sorted({name for target in _targets(graph) for name in _names(target)}))


def collectives_in(graph: Any) -> bool:
    """Whether ranks meet in the graph."""
    return any(getattr(target, "namespace", "") in _COLLECTIVES for target in _targets(graph))


def _targets(graph: Any) -> Iterator[Any]:
    modules = graph.modules() if hasattr(graph, "modules") else (graph,)
    for module in modules:
        nodes = getattr(getattr(module, "graph", None), "nodes", ())
        for node in nodes:
            if node.op == "call_function":
                yield node.target
                # Such as what auto_functionalized() is to call.
                yield from (each for each in (*node.args, *node.kwargs.values()) if hasattr(each, "_schema"))


def _names(target: Any) -> Iterator[str]:
    if hasattr(target, "_schema"):
        if target.namespace not in OF_TORCH:
            yield str(target)
    elif hasattr(target, "overloads"):
        if str(target).partition(".")[0] not in OF_TORCH:
            yield from (f"{target}.{each}" for each in target.overloads())
    elif functions.digest([target]) and getattr(target, "__qualname__", ""):
        yield f"{_CALLABLE} {target.__module__}:{target.__qualname__}"


def stated(name: str) -> dict[str, str]:
    """What the op of this name is now, by the rows of table.PARTS; empty if this process has none of that name."""
    if name.startswith(f"{_CALLABLE} "):
        found = _callable(name)
        return {"callable": functions.digest([found])} if found is not None else {}
    op = _op(name)
    if op is None:
        return {}
    parts = {
        "schema": str(op._schema),
        "tags": " ".join(sorted(tag.name for tag in op.tags)),
        "fake": functions.digest(_fakes(op)),
        "autograd": functions.digest(_formulas(op)),
        "body": functions.digest(_bodies(op)),
        "kernels": functions.digest(_kernels(op, lambda key: not key.startswith("Autograd"))),
    }
    if _is_unseen(op):
        parts[UNSEEN] = "yes"
    return {part: value for part, value in parts.items() if value}


def _is_unseen(op: Any) -> bool:
    """Whether Library.impl() was given something for it that was not noted: torch keeps the names of all of that."""
    library, entry = sys.modules.get("torch.library"), _entry(op)
    if _definition(op) is not None:
        return False
    noted = {*_registered.get(op._name, ()), *_OPAQUE}
    if entry is not None and entry.fake_impl.kernel is not None:
        noted.add("Meta")  # torch's own, which calls that
    before = f"{op._name.replace('::', '/')}/"
    given = (each[len(before) :] for each in getattr(library, "_impls", ()) if each.startswith(before))
    return any(key not in noted for key in given)


def _callable(name: str) -> Any:
    module, _, path = name[len(_CALLABLE) + 1 :].partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _op(name: str) -> Any:
    found: Any = getattr(sys.modules.get("torch"), "ops", None)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _entry(op: Any) -> Any:
    registry = sys.modules.get("torch._library.simple_registry")
    return registry.singleton._data.get(op._name) if registry is not None else None


def _definition(op: Any) -> Any:
    known = sys.modules.get("torch._library.custom_ops")
    return known.OPDEFS.get(op._name) if known is not None else None


def _fakes(op: Any) -> Iterator[Any]:
    definition, entry = _definition(op), _entry(op)
    if definition is not None:
        yield definition._abstract_fn
    elif entry is not None and entry.fake_impl.kernel is not None:
        yield entry.fake_impl.kernel.func


def _formulas(op: Any) -> Iterator[Any]:
    definition = _definition(op)
    if definition is not None:
        yield from (definition._backward_fn, definition._setup_context_fn)
    else:
        yield from _kernels(op, lambda key: key.startswith("Autograd"))


def _bodies(op: Any) -> Iterator[Any]:
    definition, entry = _definition(op), _entry(op)
    triton = sys.modules.get("torch._library.triton")
    if definition is not None:
        yield from definition._torch_dispatch_fns.values()
        yield definition._vmap_fn
        if triton is not None and op._name in triton.triton_ops_to_kernels:
            yield definition._init_fn
    if entry is not None:
        yield from entry.torch_dispatch_rules._data.values()
    yield from op.py_kernels.values()
    for module, table in (("torch._decomp", "decomposition_table"), ("torch._inductor.lowering", "lowerings")):
        yield getattr(sys.modules.get(module), table, {}).get(op)


def _kernels(op: Any, wanted: Callable[[str], bool]) -> Iterable[Any]:
    """What Library.impl() was given for it; of a custom_op() that is torch's own, which calls what the others have."""
    kernels = _registered.get(op._name, {}) if _definition(op) is None else {}
    return [kernels[key] for key in sorted(kernels) if wanted(key)]
