"""Custom ops, and functions allowed in graphs: which of them a graph has, and what each of them is now.

Torch's own are covered by its version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from safecache.omitted import functions, sources

__all__ = [
    "HIDDEN",
    "UNSEEN",
    "collectives_in",
    "find_changed",
    "find_modules",
    "named_in",
    "registered",
    "reset",
    "stated",
]

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
_TABLES = (
    ("torch._decomp", "decomposition_table"),
    ("torch._inductor.decomposition", "decompositions"),
    ("torch._inductor.lowering", "lowerings"),
    ("torch._inductor.lowering", "user_lowerings"),
)
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "c10d", "symm_mem", "_c10d_functional_autograd", "_dtensor")
# Of what Library.impl() registers, what is not traced through, but called when the graph runs.
_OPAQUE = ("CPU", "CUDA", "XPU", "HIP", "MPS", "HPU", "XLA", "PrivateUse1", "CompositeExplicitAutograd")
# How the dispatcher names a file that has registered something.
_PLACE = re.compile(r"registered at (.+):\d+")
_CALLABLE, _CLASS = "callable", "class"
# Stated of what cannot all be looked at, such as an op of which something was registered before this process had
# safecache: these parts are not known then.
UNSEEN, HIDDEN = "unseen", ("autograd", "kernels")

# By qualified name and dispatch key, what Library.impl() was given: the dispatcher does not give it back.
_registered: dict[str, dict[str, Callable[..., Any]]] = {}
# By name as in named_in(), the modules that were met as it was stated.
_modules: dict[str, frozenset[str]] = {}
# By qualified name, the libraries in C++ that have registered something for an op.
_libraries: dict[str, tuple[str, ...]] = {}
# The tables of what torch's own ops are made of, as they were looked at, and the names of ops that others have changed.
_tables: tuple[list[list[Any]], tuple[str, ...]] = [], ()


def registered(name: str, key: str, function: Callable[..., Any]) -> None:
    """Note that ``function`` was registered for the op of this qualified ``name``, for one dispatch ``key``."""
    is_torchs = name.partition("::")[0] in OF_TORCH and sources.is_upstream(_module_of(function))
    if not is_torchs and key not in _OPAQUE:
        _registered.setdefault(name, {})[key] = function


def _module_of(function: Any) -> str:
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__module__", None) or "builtins")


def named_in(graph: Any, *, is_lowered: bool) -> tuple[str, ...]:
    """The names of the custom ops in an FX graph and those within it, and of torch's own that others have changed.

    As ``namespace.name.overload``. Also of the functions that it calls as they are, and of its tensors' classes: as
    ``callable module:name`` and ``class module:name``. ``is_lowered``: no op becomes another one in it any more.
    """
    found = {name for target in _targets(graph) for name in _names(target)}
    classes = {f"{_CLASS} {each.__module__}:{each.__qualname__}" for each in _classes(graph)}
    return tuple(sorted({*found, *classes, *find_changed(graph, is_lowered=is_lowered)}))


def find_changed(graph: Any, *, is_lowered: bool) -> set[str]:
    """Find torch's own ops for which others have registered what is traced through, or a lowering; see named_in()."""
    names = set(_changed())
    return {str(target) for target in _targets(graph)} & names if names and is_lowered else names


def _changed() -> tuple[str, ...]:
    global _tables
    known: list[Any] = [getattr(sys.modules.get(module), table, {}) for module, table in _TABLES]
    values = [list(table.values()) for table in known]
    if values != _tables[0]:
        items = (item for table in known for item in list(table.items()))
        found = (op for op, made in items if not sources.is_upstream(_module_of(made)))
        _tables = values, tuple(sorted(str(op) for op in found if getattr(op, "namespace", "") in OF_TORCH))
    given = (name.replace("::", ".") for name in _registered if name.partition("::")[0] in OF_TORCH)
    return (*_tables[1], *(name if name.count(".") > 1 else f"{name}.default" for name in given))


def _classes(graph: Any) -> set[type]:
    """Collect the classes of tensors in the graph, and of what these consist of, that are not torch's own."""
    found: set[type] = set()
    left = [value for module in _modules_in(graph) for value in _values(module)]
    while left:
        value = left.pop()
        found.add(type(value))
        if isinstance(value, (tuple, list)):
            left += value
        elif hasattr(type(value), "__tensor_flatten__"):
            left += [getattr(value, name, None) for name in value.__tensor_flatten__()[0]]
    classes = {each for kind in found if hasattr(kind, "__torch_function__") for each in kind.__mro__}
    return {each for each in classes if not sources.is_upstream(each.__module__)}


def _values(module: Any) -> Iterator[Any]:
    for node in getattr(getattr(module, "graph", None), "nodes", ()):
        yield node.meta.get("example_value", node.meta.get("val"))
    yield from getattr(module, "_parameters", {}).values()
    yield from getattr(module, "_buffers", {}).values()


def collectives_in(graph: Any) -> bool:
    """Whether ranks meet in the graph."""
    return any(getattr(target, "namespace", "") in _COLLECTIVES for target in _targets(graph))


def _modules_in(graph: Any) -> Iterable[Any]:
    return graph.modules() if hasattr(graph, "modules") else (graph,)


def _targets(graph: Any) -> Iterator[Any]:
    for module in _modules_in(graph):
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


def find_modules(names: Iterable[str]) -> set[str]:
    """Return the modules that were met as what has these names was stated last."""
    return {module for name in names for module in _modules.get(name, ())}


def stated(name: str) -> dict[str, str]:
    """What the op of this name is now, by the rows of table.PARTS; empty if this process has none of that name."""
    what, _, place = name.rpartition(" ")
    if what:
        found = _found(place)
        looked = (
            {} if found is None else {"callable" if what == _CALLABLE else "subclass": functions.look_into([found])}
        )
        _modules[name] = frozenset().union(*(each.modules for each in looked.values()))
        return {part: each.digest for part, each in looked.items()}
    op = _op(name)
    if op is None:
        return {}
    looked = {
        "fake": functions.look_into(_fakes(op)),
        "autograd": functions.look_into(_formulas(op)),
        "body": functions.look_into(_bodies(op)),
        "kernels": functions.look_into(_kernels(op, lambda key: not key.startswith("Autograd"))),
    }
    _modules[name] = frozenset(_libraries_of(op)).union(*(each.modules for each in looked.values()))
    parts = {"schema": str(op._schema), "tags": " ".join(sorted(tag.name for tag in op.tags))}
    parts |= {part: each.digest for part, each in looked.items()}
    if _is_unseen(op):
        parts[UNSEEN] = "yes"
    return {part: value for part, value in parts.items() if value}


def _libraries_of(op: Any) -> Iterable[str]:
    """Find the libraries in C++ that have registered something for it. Reads each of them, once."""
    if op.namespace in OF_TORCH or _definition(op) is not None:
        return ()
    if op._name not in _libraries:
        dump = sys.modules["torch"]._C._dispatch_dump(op._name)
        places = {place for place in _PLACE.findall(dump) if not place.endswith(".py") and "pytorch/" not in place}
        _libraries[op._name] = tuple(sources.find_registrars(places)) if places else ()
    return _libraries[op._name]


def _is_unseen(op: Any) -> bool:
    """Tell whether Library.impl() was given something for it that was not noted: torch keeps the names of all of that.

    What a server registers is covered by its version.
    """
    library, entry = sys.modules.get("torch.library"), _entry(op)
    if _definition(op) is not None or op.namespace in OF_TORCH:
        return False
    noted = {*_registered.get(op._name, ()), *_OPAQUE}
    if entry is not None and entry.fake_impl.kernel is not None:
        noted.add("Meta")  # torch's own, which calls that
    before = f"{op._name.replace('::', '/')}/"
    given = (each[len(before) :] for each in getattr(library, "_impls", ()) if each.startswith(before))
    return any(key not in noted for key in given) and not _is_of_server(op)


def _is_of_server(op: Any) -> bool:
    """Tell whether each file that the dispatcher names lies in an installed server."""
    torch = sys.modules["torch"]
    files = {place for place in _PLACE.findall(torch._C._dispatch_dump(op._name)) if place.endswith(".py")}
    modules = {getattr(each, "__file__", None): name for name, each in list(sys.modules.items())}
    return bool(files) and all(path in modules and sources.is_upstream(modules[path]) for path in files)


def _found(place: str) -> Any:
    module, _, path = place.partition(":")
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
        yield getattr(definition, "_autocast_dtype", None) or ()
        if triton is not None and op._name in triton.triton_ops_to_kernels:
            yield definition._init_fn
    if entry is not None:
        yield from entry.torch_dispatch_rules._data.values()
    yield from op.py_kernels.values()
    for module, table in _TABLES[:-1]:
        yield getattr(sys.modules.get(module), table, {}).get(op)
    yield from _tuned(op)


def _tuned(op: Any) -> Iterator[Any]:
    """Yield what a lowering that tries several configurations was given: functions, and their arguments."""
    module, table = _TABLES[-1]
    lowering = getattr(sys.modules.get(module), table, {}).get(op)
    if lowering is None:
        return
    yield lowering
    for cell in lowering.__closure__ or ():
        with suppress(ValueError):  # not bound
            found = cell.cell_contents
            yield from (getattr(each, "__dict__", each) for each in (found if isinstance(found, list) else [found]))


def _kernels(op: Any, wanted: Callable[[str], bool]) -> Iterable[Any]:
    """What Library.impl() was given for it; of a custom_op() that is torch's own, which calls what the others have."""
    kernels = _registered.get(op._name, {}) if _definition(op) is None else {}
    return [kernels[key] for key in sorted(kernels) if wanted(key)]


def reset() -> None:
    """Look at torch's tables again."""
    global _tables
    _tables = [], ()
    _modules.clear()
    _libraries.clear()
