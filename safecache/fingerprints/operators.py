"""Custom ops, and functions allowed in graphs: which of them a graph has, and what each of them is now.

Torch's own are covered by its version.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from safecache.fingerprints import functions, sources
from safecache.patching.hook import hook
from safecache.session import Part, inherit

__all__ = [
    "HIDDEN",
    "UNSEEN",
    "find_changed",
    "find_modules",
    "fingerprint_operator",
    "has_collectives",
    "list_ops",
    "note_implementation",
    "note_registration",
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
# Modules whose passes others may give patterns to.
_PASSES = tuple(f"torch._inductor.fx_passes.{name}" for name in ("pre_grad", "joint_graph", "post_grad"))
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "c10d", "symm_mem", "_c10d_functional_autograd", "_dtensor")
# Of what Library.impl() registers, what is not traced through, but called when the graph runs.
_OPAQUE = ("CPU", "CUDA", "XPU", "HIP", "MPS", "HPU", "XLA", "PrivateUse1", "CompositeExplicitAutograd")
# How the dispatcher names a file that has registered something.
_PLACE = re.compile(r"registered at (.+):\d+")
_CALLABLE, _CLASS, _PATTERNS = "callable", "class", "patterns"
# Stated of what cannot all be looked at, such as an op of which something was registered before this process had
# safecache: these parts are not known then.
UNSEEN, HIDDEN = "unseen", ("autograd", "kernels")

# By qualified name and dispatch key, what Library.impl() was given: the dispatcher does not give it back.
_registered: dict[str, dict[str, Callable[..., Any]]] = {}
# What Library.impl() had been given, as torch keeps it, before this process had safecache.
_before: frozenset[str] | None = None


class _State:
    def __init__(self) -> None:
        # By name as in named_in(), the modules that were met as it was stated.
        self.modules: dict[str, frozenset[str]] = {}
        # By qualified name, the libraries in C++ that have registered something for an op.
        self.libraries: dict[str, tuple[str, ...]] = {}
        # The tables of what torch's own ops are made of, as they were looked at, and the names of ops that others have
        # changed.
        self.tables: tuple[list[list[Any]], tuple[str, ...]] = [], ()
        # By identity, each pattern of torch's passes, what it consisted of, and whether others have given it.
        self.patterns: dict[int, tuple[Any, list[Any], bool]] = {}
        # Of torch's own ops, those for which Library.impl() had been given somebody else's before.
        self.unseen: frozenset[str] | None = None


_state: Part[_State] = Part(_State, inherit)


def note_registration(name: str, key: str, function: Callable[..., Any]) -> None:
    """Note that ``function`` was registered for the op of this qualified ``name``, for one dispatch ``key``."""
    global _before
    if _before is None:
        _before = frozenset(_find_impls() - {f"{name.replace('::', '/')}/{key}"})
    is_torchs = name.partition("::")[0] in OF_TORCH and sources.is_upstream(_find_module(function))
    if not is_torchs and key not in _OPAQUE:
        _registered.setdefault(name, {})[key] = function


def _find_impls() -> set[str]:
    given: set[str] = getattr(sys.modules.get("torch.library"), "_impls", set())
    return given


def _find_module(function: Any) -> str:
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__module__", None) or "builtins")


def list_ops(graph: Any, *, is_lowered: bool) -> tuple[str, ...]:
    """The names of the custom ops in an FX graph and those within it, and of torch's own that others have changed.

    As ``namespace.name.overload``. Also of the functions that it calls as they are, and of its tensors' classes: as
    ``callable module:name`` and ``class module:name``; and ``patterns``, if others have given some to torch's passes.
    ``is_lowered``: no op becomes another one in it any more.
    """
    found = {name for target in _iter_targets(graph) for name in _iter_names(target)}
    classes = {f"{_CLASS} {each.__module__}:{each.__qualname__}" for each in _find_classes(graph)}
    return tuple(sorted({*found, *classes, *find_changed(graph, is_lowered=is_lowered)}))


def find_changed(graph: Any, *, is_lowered: bool) -> set[str]:
    """Find torch's own ops for which others have registered what is traced through, or a lowering; see named_in()."""
    names = set(_list_changed())
    names = {str(target) for target in _iter_targets(graph)} & names if names and is_lowered else names
    return {*names, _PATTERNS} if any(_iter_patterns()) else names


def _list_changed() -> tuple[str, ...]:
    state = _state.now
    known: list[Any] = [getattr(sys.modules.get(module), table, {}) for module, table in _TABLES]
    values = [list(table.values()) for table in known]
    if values != state.tables[0]:
        items = (item for table in known for item in list(table.items()))
        found = (op for op, made in items if not sources.is_upstream(_find_module(made)))
        state.tables = values, tuple(sorted(str(op) for op in found if getattr(op, "namespace", "") in OF_TORCH))
    rules = getattr(sys.modules.get("torch._library.simple_registry"), "singleton", None)
    given = [*_registered, *_find_unseen()]
    given += [name for name, entry in (rules._data if rules else {}).items() if entry.torch_dispatch_rules._data]
    names = (name.replace("::", ".") for name in given if name.partition("::")[0] in OF_TORCH)
    return (*state.tables[1], *(name if name.count(".") > 1 else f"{name}.default" for name in names))


def _find_unseen() -> frozenset[str]:
    """Find torch's own ops for which Library.impl() was given somebody else's before this process had safecache."""
    global _before
    state = _state.now
    if _before is None:
        _before = frozenset(_find_impls())
    if state.unseen is None:
        given = (each.split("/", 2) for each in _before)
        names = {f"{space}::{op}" for space, op, key in given if space in OF_TORCH and key not in _OPAQUE}
        state.unseen = frozenset(filter(_is_anothers, names))
    return state.unseen


def _is_anothers(name: str) -> bool:
    """Tell whether a file that is not torch's has registered something in Python for this op."""
    torch = sys.modules["torch"]
    top = os.path.dirname(str(torch.__file__))
    places = _PLACE.findall(torch._C._dispatch_dump(name))
    return any(place.endswith(".py") and not place.startswith(top) for place in places)


def _iter_patterns() -> Iterator[Any]:
    """Yield the patterns that others have given to torch's passes. Looks once at what each of some 900 consists of."""
    known = _state.now.patterns
    for module in _PASSES:
        for value in list(getattr(sys.modules.get(module), "__dict__", {}).values()):
            passes = value if isinstance(value, list) else [value]
            tables = [each.patterns for each in passes if type(each).__name__ == "PatternMatcherPass"]
            for entry in (entry for table in tables for found in list(table.values()) for entry in found):
                _, seen, is_own = known.get(id(entry), (None, None, False))
                parts = list(getattr(entry, "__dict__", {}).values())
                if parts != seen:
                    is_own = _is_own(parts)
                    known[id(entry)] = entry, parts, is_own
                if is_own:
                    yield entry


def _is_own(parts: list[Any]) -> bool:
    parts = [each for each in parts if callable(each)]
    parts += [_read_cell(each) for part in parts for each in getattr(part, "__closure__", None) or ()]
    return any(not sources.is_upstream(_find_module(each)) for each in parts if callable(each))


def _read_cell(cell: Any) -> Any:
    with suppress(ValueError):  # not bound
        return cell.cell_contents
    return None


def _find_classes(graph: Any) -> set[type]:
    """Collect the classes of tensors in the graph, and of what these consist of, that are not torch's own."""
    found: set[type] = set()
    left: list[Any] = []
    for module in _iter_modules(graph):
        nodes = getattr(getattr(module, "graph", None), "nodes", ())
        left += [node.meta.get("example_value", node.meta.get("val")) for node in nodes]
        left += [*getattr(module, "_parameters", {}).values(), *getattr(module, "_buffers", {}).values()]
    while left:
        value = left.pop()
        found.add(type(value))
        if isinstance(value, (tuple, list)):
            left += value
        elif hasattr(type(value), "__tensor_flatten__"):
            left += [getattr(value, name, None) for name in value.__tensor_flatten__()[0]]
    classes = {each for kind in found if hasattr(kind, "__torch_function__") for each in kind.__mro__}
    return {each for each in classes if not sources.is_upstream(each.__module__)}


def has_collectives(graph: Any) -> bool:
    """Tell whether ranks meet in the graph, in a collective."""
    return any(getattr(target, "namespace", "") in _COLLECTIVES for target in _iter_targets(graph))


def _iter_modules(graph: Any) -> Iterable[Any]:
    return graph.modules() if hasattr(graph, "modules") else (graph,)


def _iter_targets(graph: Any) -> Iterator[Any]:
    for module in _iter_modules(graph):
        nodes = getattr(getattr(module, "graph", None), "nodes", ())
        for node in nodes:
            if node.op == "call_function":
                yield node.target
                # Such as what auto_functionalized() is to call.
                yield from (each for each in (*node.args, *node.kwargs.values()) if hasattr(each, "_schema"))


def _iter_names(target: Any) -> Iterator[str]:
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
    return {module for name in names for module in _state.now.modules.get(name, ())}


def fingerprint_operator(name: str) -> dict[str, str]:
    """Return the digest or text of each row of omitted.PARTS for the op ``name``; empty if the process lacks it."""
    if name == _PATTERNS:
        patterns = functions.look_into([vars(each) for each in _iter_patterns()])
        _state.now.modules[name] = patterns.modules
        return {"pattern": patterns.digest or "none"}
    what, _, place = name.rpartition(" ")
    if what:
        module, _, path = place.partition(":")
        found = _resolve_path(sys.modules.get(module), path)
        row = "callable" if what == _CALLABLE else "subclass"
        looked = {} if found is None else {row: functions.look_into([found])}
        _state.now.modules[name] = frozenset().union(*(each.modules for each in looked.values()))
        return {part: each.digest for part, each in looked.items()}
    op = _resolve_path(getattr(sys.modules.get("torch"), "ops", None), name)
    if op is None:
        return {}
    definition, entry = _find_definition(op), _find_entry(op)
    # What Library.impl() was given for it; of a custom_op() that is torch's own, which calls what the others have.
    given = sorted(_registered.get(op._name, {}).items()) if definition is None else []
    formulas = [function for key, function in given if key.startswith("Autograd")]
    fakes = [entry.fake_impl.kernel.func] if entry is not None and entry.fake_impl.kernel is not None else []
    if definition is not None:
        fakes, formulas = [definition._abstract_fn], [definition._backward_fn, definition._setup_context_fn]
    looked = {
        "fake": functions.look_into(fakes),
        "autograd": functions.look_into(formulas),
        "body": functions.look_into(_iter_bodies(op)),
        "kernels": functions.look_into(function for key, function in given if not key.startswith("Autograd")),
    }
    servers = _find_servers(op)
    found = {*_find_libraries(op), *(servers or ())}
    _state.now.modules[name] = frozenset(found).union(*(each.modules for each in looked.values()))
    parts = {"schema": str(op._schema), "tags": " ".join(sorted(tag.name for tag in op.tags))}
    parts |= {part: each.digest for part, each in looked.items()}
    if servers is None:
        parts[UNSEEN] = "yes"
    return {part: value for part, value in parts.items() if value}


def _find_libraries(op: Any) -> Iterable[str]:
    """Find the libraries in C++ that have registered something for it. Reads each of them, once."""
    if op.namespace in OF_TORCH or _find_definition(op) is not None:
        return ()
    libraries = _state.now.libraries
    if op._name not in libraries:
        dump = sys.modules["torch"]._C._dispatch_dump(op._name)
        places = {place for place in _PLACE.findall(dump) if not place.endswith(".py") and "pytorch/" not in place}
        libraries[op._name] = tuple(sources.find_registrars(places)) if places else ()
    return libraries[op._name]


def _find_servers(op: Any) -> set[str] | None:
    """Return the servers that have given Library.impl() for it what was not noted; None if others have.

    Torch keeps the names of all that was given. What a server registers is covered by its row.
    """
    if op.namespace in OF_TORCH:
        return None if op._name in _find_unseen() else set()
    entry = _find_entry(op)
    if _find_definition(op) is not None:
        return set()
    noted = {*_registered.get(op._name, ()), *_OPAQUE}
    if entry is not None and entry.fake_impl.kernel is not None:
        noted.add("Meta")  # torch's own, which calls that
    before = f"{op._name.replace('::', '/')}/"
    given = (each[len(before) :] for each in list(_find_impls()) if each.startswith(before))
    if all(key in noted for key in given):
        return set()
    # Each file that the dispatcher names has to be a server's.
    torch = sys.modules["torch"]
    files = {place for place in _PLACE.findall(torch._C._dispatch_dump(op._name)) if place.endswith(".py")}
    packages = {*map(sources.find_package, files)}
    return {*map(sources.find_server, packages)} - {""} if packages and "" not in packages else None


def _resolve_path(found: Any, path: str) -> Any:
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _find_entry(op: Any) -> Any:
    registry = sys.modules.get("torch._library.simple_registry")
    return registry.singleton._data.get(op._name) if registry is not None else None


def _find_definition(op: Any) -> Any:
    known = sys.modules.get("torch._library.custom_ops")
    return known.OPDEFS.get(op._name) if known is not None else None


def _iter_bodies(op: Any) -> Iterator[Any]:
    definition, entry = _find_definition(op), _find_entry(op)
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
    for module, table in _TABLES:
        yield getattr(sys.modules.get(module), table, {}).get(op)
    # What a lowering that tries several configurations was given: functions, and their arguments.
    module, table = _TABLES[-1]
    lowering = getattr(sys.modules.get(module), table, {}).get(op)
    for found in map(_read_cell, getattr(lowering, "__closure__", None) or ()):
        yield from (getattr(each, "__dict__", each) for each in (found if isinstance(found, list) else [found]))


@hook(
    "torch.library:Library.impl(self, op_name, fn, dispatch_key=, *with_keyset=, *allow_override=)",
    why="Torch's cache keys leave out the code of custom ops, so a changed op still hits the old graph.",
    issue="https://github.com/pytorch/pytorch/issues/160472",
)
def note_implementation(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """Library.impl: notes the function, unless it is torch's own for an op of torch."""

    def note(op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **named: Any) -> None:  # noqa: ARG001
        name = str(getattr(op_name, "_name", op_name))
        note_registration(name if "::" in name else f"{instance.ns}::{name}", dispatch_key or instance.dispatch_key, fn)

    result = wrapped(*args, **kwargs)
    note(*args, **kwargs)
    return result
