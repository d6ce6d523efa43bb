"""Encodes a compile as JSON for a worker, if Triton is as released and everything can be sent."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
import re
import sys
import sysconfig
import textwrap
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import ir
from triton.compiler.compiler import ASTSource, IRSource, make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITCallable

from safecache.isolation.values import Encoder, UnshippableError, UnshippableKernelError, Use, find_language, find_uses

__all__ = [
    "CannotTravel",
    "FrontEndError",
    "Kernels",
    "apply_knobs",
    "encode",
    "find_knob_hindrance",
    "find_replaced_backend",
    "find_replaced_front_end",
    "read_knobs",
    "rebuild_options",
]

_FRONT_END = (
    "triton.language",
    "triton.experimental.gluon",
    "triton.compiler.code_generator",
    "triton.runtime.jit",
    "triton._utils",
)
_ROOTS = (
    os.path.join(os.path.dirname(os.path.abspath(triton.__file__)), ""),
    os.path.join(sysconfig.get_path("stdlib"), ""),
    "<frozen ",
)
# It has triton.compile() called, which gets what was made of the source. A hook of ours is there.
_COMPILING = "triton.runtime.jit.JITFunction._do_compile"
_SETTINGS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")
_DEF = re.compile(r"^(?P<indent>[ \t]*)def\s+\w+\s*\(")
# Packages of the types that Triton's modules hold. An object of another type may be callable.
_TYPES_FROM = (sys.stdlib_module_names | {"triton", "nanobind", "pybind11_builtins"}) - {"unittest"}


def find_replaced_front_end() -> str | None:
    """The name of a function between a kernel's source and its IR that is not as released; None if all are."""
    # The rest of triton.compiler.compiler decides where to compile.
    return _area(_FRONT_END, ASTSource, IRSource).find_replaced()


def find_replaced_backend(backend: Any) -> str | None:
    """Return the name of a function in the stages of ``backend`` that is not as released; None if all are."""
    # Triton's profiler sets it, in one place up to 3.8 and in another later.
    module = sys.modules.get("triton._instrumentation")
    if getattr(module, "_callbacks", None) or getattr(backend, "instrumentation", None) is not None:
        return "the instrumentation of kernels"
    return _area((type(backend).__module__,)).find_replaced()


class _Area:
    """Part of Triton's modules and their classes, with their content when it was last found to be as released."""

    def __init__(self, roots: tuple[str, ...], *classes: type) -> None:
        self._roots = roots
        self._modules = -1
        # Their names. More of them may be imported at any time.
        self._parts: dict[Any, str] = {kind: f"{kind.__module__}.{kind.__name__}" for kind in classes}
        # What each has held, and the sources of the kernels among that.
        self._seen: dict[Any, tuple[list[Any], list[tuple[Any, str]]]] = {}

    def find_replaced(self) -> str | None:
        if self._modules != len(sys.modules):
            self._modules = len(sys.modules)
            self._parts = {**dict(self._iter_parts()), **self._parts}
        return next(filter(None, map(self._find_replaced_in, self._parts)), None)

    def _iter_parts(self) -> Iterator[tuple[Any, str]]:
        for name, module in list(sys.modules.items()):
            if any(f"{name}.".startswith(f"{root}.") for root in self._roots):
                yield module, name
                for kind in list(vars(module).values()):
                    if isinstance(kind, type) and kind.__module__.partition(".")[0] == "triton":
                        yield kind, f"{kind.__module__}.{kind.__qualname__}"

    def _find_replaced_in(self, part: Any) -> str | None:
        # Checking again must cost next to nothing if nothing has changed.
        values = list(vars(part).values())
        seen, sources = self._seen.get(part, ([], []))
        same = len(values) == len(seen) and all(map(operator.is_, values, seen))
        if not same or not all(kernel.src is source for kernel, source in sources):
            for name, value in list(vars(part).items()):
                full_name = f"{self._parts[part]}.{name}"
                if full_name != _COMPILING and not all(map(_is_stock, _iter_functions(value))):
                    return full_name
            self._seen[part] = values, [(value, value.src) for value in values if _has_source(value)]
        return None


_area = functools.cache(_Area)


def _has_source(value: Any) -> bool:
    return isinstance(value, JITCallable) and hasattr(value, "raw_src")


def _iter_functions(value: Any) -> Iterator[Any]:
    """The functions that are called if ``value`` is, including those that they wrap."""
    if isinstance(value, property):
        yield from (part for part in (value.fget, value.fset) if part is not None)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _iter_functions(value.__func__)
    elif isinstance(value, functools.partial):
        yield from _iter_functions(value.func)
    elif _has_source(value):
        yield from _iter_functions(value.fn)
        yield value
    else:
        yield value
        if not isinstance(value, type) and hasattr(value, "__wrapped__"):
            yield from _iter_functions(value.__wrapped__)


def _is_stock(value: Any) -> bool:
    if isinstance(value, JITCallable):
        # Its source may have been replaced.
        return bool(textwrap.dedent("".join(value.raw_src)).endswith(value.src))
    if type(value).__module__.partition(".")[0] not in _TYPES_FROM:
        return False
    code = getattr(value, "__code__", None)
    if code is None:
        return True
    # Methods that dataclasses generate have no file; their module is that of the class.
    generated = code.co_filename == "<string>" and value.__module__.partition(".")[0] == "triton"
    return bool(generated or code.co_filename.startswith(_ROOTS))


def rebuild_options(backend: Any, fields: dict[str, Any]) -> Any:
    """The options with these fields; ``backend.parse_options`` would fill in the environment of this process."""
    # Triton 3.9 warns if this option is not given.
    kind = type(backend.parse_options({"enable_fp_fusion": False}))
    options = object.__new__(kind)
    vars(options).update(fields)
    return options


# Knobs of use only in the process that launches kernels, or that holds the cache.
_OF_THE_PARENT = {
    "listener",
    "impl",
    "manager_class",
    "remote_manager_class",
    "jit_cache_hook",
    "jit_post_compile_hook",
}
_PLAIN = (bool, int, str)


def read_knobs() -> dict[str, dict[str, Any]]:
    """The values of Triton's knobs in this process, by group and name."""
    found = {}
    for group, values in _find_groups().items():
        # Some are read from the environment when Triton is imported, which in a worker may be at another time.
        constants = vars(type(values)).items()
        at_import = {name: value for name, value in constants if isinstance(value, _PLAIN) and name[0] != "_"}
        own = {**at_import, **vars(values)}
        found[group] = {name: value for name, value in own.items() if value is None or isinstance(value, _PLAIN)}
    return found


def find_knob_hindrance() -> str | None:
    """The knob that prevents every compile here from being isolated, in words; None if there is none."""
    if knobs.runtime.interpret:
        return "TRITON_INTERPRET has kernels interpreted"
    if knobs.compilation.use_ir_loc:
        return "USE_IR_LOC names files in the cache, which a worker does not have"
    if getattr(knobs.runtime, "add_stages_inspection_hook", None) is not None:
        return "triton.knobs.runtime.add_stages_inspection_hook changes the stages of a compile by a function of Python"
    for group, values in _find_groups().items():
        for name, value in vars(values).items():
            if value is not None and not isinstance(value, _PLAIN) and name not in _OF_THE_PARENT:
                return f"triton.knobs.{group}.{name} is set to a {type(value).__name__}"
    return None


def apply_knobs(values: dict[str, dict[str, Any]]) -> None:
    """Set exactly these knobs in a worker, given as current() returns them."""
    for group, target in _find_groups().items():
        vars(target).clear()
        # Not by assignment, which sets environment variables.
        vars(target).update(values.get(group, {}))


def _find_groups() -> dict[str, Any]:
    return {name: value for name, value in vars(knobs).items() if isinstance(value, knobs.base_knobs)}


class CannotTravel(Exception):
    """Error of a compile that must stay in this process. The text is the reason, a clause: "… is set to a function"."""


class FrontEndError(CannotTravel):
    """The front end, run here, has rejected the kernel, and would do so again. The cause is what it raised."""


def encode(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The "source" of a job for ``job.run``, JSON-able. ``options``: the fields of the options that the backend parsed.

    A kernel is sent as its source. If compiling it calls Python code of the user's (constexpr functions, builtins,
    aggregates) or replaced functions of Triton's, its front end runs here, not isolated, and its IR is sent. Raises
    CannotTravel, naming what cannot be sent; FrontEndError if the kernel itself is at fault.
    """
    try:
        hindrance = find_knob_hindrance()
        replaced = find_replaced_backend(make_backend(target))
        if hindrance is not None or replaced is not None:
            raise CannotTravel(hindrance or f"{replaced} is not as Triton was released")
        # The GPU of this process, for kernels that query it, unless querying would initialise CUDA.
        active, cuda = driver._active or driver._default, sys.modules.get("torch.cuda")
        is_known = active is not None and (cuda is None or cuda.is_initialized())
        gpu = active.get_current_target() if is_known else None
        return {
            **_encode_source(source, target, options),
            "options": Encoder().encode(options),
            "knobs": read_knobs(),
            "driver": [gpu.backend, gpu.arch, gpu.warp_size] if gpu is not None else None,
        }
    except CannotTravel:
        raise
    except UnshippableError as error:
        raise CannotTravel(str(error)) from None
    except Exception as error:
        # Such as from a user's repr=: the compile in this process meets the same error, or does not need the call.
        raise CannotTravel(f"to encode it raises {type(error).__name__}: {error}") from error


def _encode_source(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    if isinstance(source, IRSource):
        return {"kind": "ir", "path": str(source.path), "text": source.src}
    if find_language(source) is None:
        raise UnshippableError(f"{type(source).__module__}.{type(source).__qualname__} is no source of Triton's")
    if find_replaced_front_end() is None:
        with contextlib.suppress(UnshippableError, RecursionError):
            return _encode_kernel_source(source)
    return _encode_lowered(source, target, options)


class Kernels:
    """A kernel with all that it uses, to be encoded. ``encoder`` encodes further values that may refer to kernels."""

    def __init__(self, kernel: Any) -> None:
        self.encoder = Encoder(self._register_kernel, lenient=not knobs.compilation.allow_non_constexpr_globals)
        self._kernels: list[Any] = []
        self._records: list[dict[str, Any]] = []
        self._scopes: dict[int, dict[str, Any]] = {}
        self._register_kernel(kernel)

    def encode_all(self) -> dict[str, Any]:
        order = {address: rank for rank, address in enumerate(self._scopes)}
        functions = [record | {"scope": order[record["scope"]]} for record in self._records]
        return {"functions": functions, "scopes": list(self._scopes.values())}

    def _register_kernel(self, kernel: Any) -> int:
        for number, known in enumerate(self._kernels):
            if known is kernel:
                return number
        # Registered before what it uses, since that may use it in turn.
        self._kernels.append(kernel)
        self._records.append({})
        number = len(self._records) - 1
        try:
            self._records[number] = self._encode_kernel(kernel)
        except UnshippableError as error:
            raise UnshippableKernelError(str(error)) from None
        return number

    def _encode_kernel(self, kernel: Any) -> dict[str, Any]:
        language = find_language(kernel)
        if language is None:
            raise UnshippableError(f"{kernel!r} is of a class of its own, {type(kernel).__qualname__}")
        if kernel.fn is None or kernel.__globals__ is None:
            raise UnshippableError(f"the kernel {kernel.__name__} has been stripped of its function")
        # What Triton reads from the source with decorators: how many lines stand before the def, and its indentation.
        lines = kernel.raw_src
        offset = next((number for number, line in enumerate(lines) if line.strip().startswith("def ")), 0)
        defined = next(filter(None, map(_DEF.match, lines)), None)
        names = find_uses(kernel.src)
        free = inspect.getclosurevars(kernel.fn).nonlocals if kernel.fn.__closure__ else {}
        return {
            "language": language,
            "source": kernel.src,
            # Up to Triton 3.8 it depends on what this process has hashed before, so the worker must not compute it.
            "hash": kernel.hash,
            "file": kernel.fn.__code__.co_filename,
            "line": kernel.starting_line_number,
            "offset": offset,
            "indent": defined["indent"] if defined else "",
            "name": kernel.__name__,
            "qualname": kernel.__qualname__,
            "module": kernel.__module__,
            "parameters": [self._encode_parameter(kernel, parameter) for parameter in kernel.params],
            "settings": {name: self.encoder.encode(getattr(kernel, name)) for name in _SETTINGS},
            "free": {
                name: self._encode(free[name], names[name], kernel, name) for name in sorted(free.keys() & names.keys())
            },
            "scope": self._encode_scope(kernel),
        }

    def _encode_parameter(self, kernel: Any, parameter: Any) -> list[Any]:
        declared = kernel.signature.parameters[parameter.name]
        record = [parameter.name, int(declared.kind), parameter.annotation]
        return [*record, self.encoder.encode(declared.default)] if parameter.has_default else record

    def _encode_scope(self, kernel: Any) -> int:
        values = kernel.__globals__
        scope = self._scopes.setdefault(id(values), {})
        free = kernel.fn.__code__.co_freevars
        for name, use in find_uses(kernel.src).items():
            if name in values and name not in free:
                encoded = self._encode(values[name], use, kernel, name)
                scope[name] = _join_parts(scope[name], encoded) if name in scope else encoded
        return id(values)

    def _encode(self, value: Any, use: Use, kernel: Any, name: str) -> Any:
        return self.encoder.encode_used(value, use, f"{name} in {kernel.__name__}")


def _join_parts(one: Any, other: Any) -> Any:
    """The encoded parts that two kernels use of the same global, joined."""
    if one == {"absent": None}:
        return other
    if other == {"absent": None} or not isinstance(one, dict) or "namespace" not in one:
        return one
    name, parts = one["namespace"]
    _, further = other["namespace"]
    for part, value in further.items():
        parts[part] = _join_parts(parts[part], value) if part in parts else value
    return {"namespace": [name, parts]}


def _encode_kernel_source(source: Any) -> dict[str, Any]:
    kernel = source.fn
    kernels, symbol = Kernels(kernel), None
    encode = kernels.encoder.encode
    if kernel._repr is not None:  # the name that the kernel's ``repr=`` gives this specialization
        constants = {kernel.arg_names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}
        specialization = namedtuple("specialization", ["constants", "signature"])  # as Triton passes one
        symbol = str(kernel.repr(specialization(constants, source.signature)))
    return {
        "kind": "kernel",
        "language": find_language(source),
        "name": source.name,
        "symbol": symbol,
        "signature": encode(source.signature),
        "constants": encode(source.constants),
        "attributes": encode(source.attrs),
        **kernels.encode_all(),
    }


def _encode_lowered(source: Any, target: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The IR from the front end, run as ``triton.compile`` begins. Raises FrontEndError."""
    try:
        backend = make_backend(target)
        parsed = rebuild_options(backend, options)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        implementation = backend.get_codegen_implementation(parsed)
        module = source.make_ir(target, parsed, implementation, backend.get_module_map(), context)
    except Exception as error:
        raise FrontEndError(f"its front end fails with {type(error).__name__}") from error
    return {
        "kind": "lowered",
        "language": find_language(source),
        "name": source.name,
        "ext": source.ext,
        "text": str(module),
        "hash": source.hash(),
    }
