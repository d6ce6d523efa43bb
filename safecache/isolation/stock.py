"""Whether Triton is as it was released: a worker has it so, and would compile without what somebody has replaced.

What is looked at are the functions and methods in its modules, by the file that their code is from.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import triton
from triton.compiler.compiler import ASTSource, IRSource
from triton.runtime.jit import JITCallable

__all__ = ["replaced_in_backend", "replaced_in_front_end"]

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
# Of the types of what lies in Triton's modules. An object of another one may be called like a function.
_TYPES_FROM = (sys.stdlib_module_names | {"triton", "nanobind", "pybind11_builtins"}) - {"unittest"}


def replaced_in_front_end() -> str | None:
    """The function or method between a kernel's source and its IR that is not as released; None if all are."""
    return _front_end().replaced()


def replaced_in_backend(backend: Any) -> str | None:
    """Likewise behind the front end; ``backend`` as ``make_backend`` gives it."""
    # Of Triton's profiler, up to 3.8 in one place and later in another.
    module = sys.modules.get("triton._instrumentation")
    if getattr(module, "_callbacks", None) or getattr(backend, "instrumentation", None) is not None:
        return "the instrumentation of kernels"
    return _backend(type(backend).__module__).replaced()


@functools.cache
def _front_end() -> _Area:
    # The rest of triton.compiler.compiler decides who compiles.
    return _Area(_FRONT_END, ASTSource, IRSource)


@functools.cache
def _backend(module: str) -> _Area:
    return _Area((module,))


class _Area:
    """Some of Triton's modules, with the classes in them. More of them can be imported at any time."""

    def __init__(self, roots: tuple[str, ...], *classes: type) -> None:
        self._roots = roots
        self._modules = -1
        self._namespaces = {kind: _Namespace(f"{kind.__module__}.{kind.__name__}", vars(kind)) for kind in classes}

    def replaced(self) -> str | None:
        if self._modules != len(sys.modules):
            self._modules = len(sys.modules)
            self._namespaces = self._namespaces | self._imported()
        return next(filter(None, (namespace.replaced() for namespace in self._namespaces.values())), None)

    def _imported(self) -> dict[Any, _Namespace]:
        """Those that are not known yet."""
        found: dict[Any, _Namespace] = {}
        for name, module in list(sys.modules.items()):
            if any(f"{name}.".startswith(f"{root}.") for root in self._roots):
                for part in (module, *filter(_is_of_triton, list(vars(module).values()))):
                    full_name = name if part is module else f"{part.__module__}.{part.__qualname__}"
                    if part not in self._namespaces:
                        found.setdefault(part, _Namespace(full_name, vars(part)))
        return found


class _Namespace:
    """A module or class as it was when it was last found to be as released."""

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self._name = name
        self._content = content
        self._seen: list[Any] = []
        self._sources: list[tuple[Any, str]] = []

    def replaced(self) -> str | None:
        # To look again must cost next to nothing where nothing has changed.
        values = list(self._content.values())
        same = len(values) == len(self._seen) and all(map(operator.is_, values, self._seen))
        if not same or not all(kernel.src is source for kernel, source in self._sources):
            for name, value in list(self._content.items()):
                if not all(map(_is_stock, _functions(value))):
                    return f"{self._name}.{name}"
            self._seen = values
            self._sources = [(value, value.src) for value in values if _has_source(value)]
        return None


def _is_of_triton(value: Any) -> bool:
    return isinstance(value, type) and value.__module__.partition(".")[0] == "triton"


def _has_source(value: Any) -> bool:
    return isinstance(value, JITCallable) and hasattr(value, "raw_src")


def _functions(value: Any) -> Iterator[Any]:
    """What is called if this is, and what that wraps in turn."""
    if isinstance(value, property):
        yield from (part for part in (value.fget, value.fset) if part is not None)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _functions(value.__func__)
    elif isinstance(value, functools.partial):
        yield from _functions(value.func)
    elif _has_source(value):
        yield from _functions(value.fn)
        yield value
    else:
        yield value
        if not isinstance(value, type) and hasattr(value, "__wrapped__"):
            yield from _functions(value.__wrapped__)


def _is_stock(value: Any) -> bool:
    if isinstance(value, JITCallable):
        # Somebody may have given it another source.
        return bool(textwrap.dedent("".join(value.raw_src)).endswith(value.src))
    if type(value).__module__.partition(".")[0] not in _TYPES_FROM:
        return False
    code = getattr(value, "__code__", None)
    if code is None:
        return True
    # What dataclasses make has no file; its module is that of the class.
    generated = code.co_filename == "<string>" and value.__module__.partition(".")[0] == "triton"
    return bool(generated or code.co_filename.startswith(_ROOTS))
