"""How a value that a kernel uses travels to a worker: as what it is made from, and what names it."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from types import ModuleType
from typing import Any

from triton.language.core import constexpr, dtype, pointer_type
from triton.runtime.jit import JITFunction

__all__ = [
    "Decoder",
    "Encoder",
    "UnshippableError",
    "UnshippableKernelError",
    "Use",
    "kernel_class",
    "language_of",
    "source_class",
    "used",
]

_KERNELS = {
    "triton": ("triton.runtime.jit", "JITFunction"),
    "gluon": ("triton.experimental.gluon._runtime", "GluonJITFunction"),
}
_SOURCES = {
    "triton": ("triton.compiler.compiler", "ASTSource"),
    "gluon": ("triton.experimental.gluon._runtime", "GluonASTSource"),
}


def language_of(value: Any) -> str | None:
    """Of a kernel, or the source of one; None for those of a class that is not Triton's."""
    for places in (_KERNELS, _SOURCES):
        for language, (module, name) in places.items():
            # Not by importing it: that of Gluon takes 20 ms, in a process that need not have it.
            if type(value) is getattr(sys.modules.get(module), name, None):
                return language
    return None


def kernel_class(language: str) -> Any:
    module, name = _KERNELS[language]
    return getattr(importlib.import_module(module), name)


def source_class(language: str) -> Any:
    module, name = _SOURCES[language]
    return getattr(importlib.import_module(module), name)


@dataclass(slots=True)
class Use:
    """How a name is used: which attributes of it, and whether it is also used itself."""

    attributes: dict[str, Use] = field(default_factory=dict)
    itself: bool = False
    # False where its value has no say in what is compiled: the annotation of an argument, a name that is also local.
    needed: bool = False


# A kernel is compiled for many configurations; parsing it takes longer than all else that sending it needs.
@functools.lru_cache(maxsize=1024)
def used(source: str) -> dict[str, Use]:
    """By name, for the one function of ``source``. Those of builtins and locals are among them.

    Triton looks a name up among the locals that it has come by so far, and then among the globals: a name that is a
    local one in Python can be a global one here. Raises SyntaxError.
    """
    (function,) = ast.parse(source).body
    finder = _Finder()
    finder.visit(function)
    for name in finder.local & finder.names.keys():
        finder.names[name].needed = False
    return finder.names


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names: dict[str, Use] = {}
        self.local: set[str] = set()
        self.annotating = False

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(node.id, [])
        else:
            self.local.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            path.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self._use(value.id, path[::-1])
        else:
            self.visit(value)

    def visit_arg(self, node: ast.arg) -> None:
        self.local.add(node.arg)
        self._annotate(node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._annotate(node.returns)
        for child in (node.args, *node.body):
            self.visit(child)

    def _annotate(self, annotation: ast.expr | None) -> None:
        if annotation is not None:
            self.annotating = True
            self.visit(annotation)
            self.annotating = False

    def _use(self, name: str, path: list[str]) -> None:
        use = self.names.setdefault(name, Use())
        use.needed |= not self.annotating
        for attribute in path:
            use = use.attributes.setdefault(attribute, Use())
            use.needed |= not self.annotating
        use.itself = True


# Triton lets kernels use these of the standard library.
_STANDARD = ("math", "copy")
_ALL = Use(itself=True, needed=True)
# What only some releases of Python put into each class.
_NO_MEMBERS = {
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__orig_bases__",
    "__static_attributes__",
}
_NO_MEMBERS |= {"__firstlineno__", "__annotate__"}


class UnshippableError(Exception):
    """This value cannot be made again in another process. The text says which it is, and why."""


class UnshippableKernelError(UnshippableError):
    """Nor can what uses this kernel: others may use it too, who would find half of it."""


class Encoder:
    """``function`` gives the number under which a kernel travels; without ``lenient``, nothing may be left out."""

    def __init__(self, function: Callable[[Any], int], lenient: bool = True) -> None:
        self._function = function
        self._lenient = lenient

    def encode(self, value: Any, use: Use = _ALL) -> Any:
        """Raises UnshippableError."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        encode = _ENCODERS.get(kind)
        if encode is not None:
            return encode(self, value)
        if isinstance(value, ModuleType):
            return self._module(value, use)
        if _is_of_triton(value):
            return {"triton": [value.__module__, value.__qualname__]}
        if isinstance(value, JITFunction):
            return {"function": self._function(value)}
        return self._other(value)

    def encode_used(self, value: Any, use: Use, name: str) -> Any:
        """As ``encode``; but if the kernel does not need it, what cannot travel is left out: {"absent": None}."""
        try:
            return self.encode(value, use)
        except UnshippableError as error:
            if use.needed or not self._lenient or isinstance(error, UnshippableKernelError):
                raise type(error)(f"{name}: {error}") from None
            return {"absent": None}

    def _module(self, module: ModuleType, use: Use) -> Any:
        name = module.__name__
        if (name.partition(".")[0] == "triton" or name in _STANDARD) and sys.modules.get(name) is module:
            return {"module": name}
        if use.itself:
            raise UnshippableError(f"the module {name} is used itself, not only what is in it")
        parts = {}
        for attribute, part in use.attributes.items():
            if hasattr(module, attribute):
                parts[attribute] = self.encode_used(getattr(module, attribute), part, f"{name}.{attribute}")
        return {"namespace": [name, parts]}

    def _other(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"record": [_fields(kind), *map(self.encode, value)]}
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            return {"record type": _fields(value)}
        if dataclasses.is_dataclass(value) and _is_of_triton(kind):
            content = {name: self.encode(part) for name, part in vars(value).items()}
            return {"instance": [kind.__module__, kind.__qualname__, content]}
        name = getattr(value, "__qualname__", None)
        told = f"the {kind.__name__} {name}" if isinstance(name, str) else f"a {kind.__module__}.{kind.__qualname__}"
        raise UnshippableError(f"{told} cannot be made again in another process")

    def _constexpr(self, value: Any) -> Any:
        return {"constexpr": self.encode(value.value)}

    def _pointer(self, value: Any) -> Any:
        return {"pointer": [self.encode(value.element_ty), value.address_space, value.const]}

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        return {"tuple": [self.encode(item) for item in value]}

    def _list(self, value: list[Any]) -> Any:
        return {"list": [self.encode(item) for item in value]}

    def _dict(self, value: dict[Any, Any]) -> Any:
        return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}


_ENCODERS: dict[type, Callable[[Encoder, Any], Any]] = {
    # JSON knows neither infinity nor NaN.
    float: lambda _, value: {"float": value.hex()},
    dtype: lambda _, value: {"dtype": value.name},
    tuple: Encoder._tuple,
    list: Encoder._list,
    dict: Encoder._dict,
    constexpr: Encoder._constexpr,
    pointer_type: Encoder._pointer,
}


def _is_of_triton(value: Any) -> bool:
    """Whether this function or class is Triton's own, to be found there by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.partition(".")[0] != "triton":
        return False
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(module)) is value


def _fields(kind: Any) -> list[Any]:
    """Of a class of named tuples."""
    plain = collections.namedtuple(kind.__name__, kind._fields)  # type: ignore[misc]
    if vars(kind).keys() - vars(plain).keys() - _NO_MEMBERS or kind.__bases__ != (tuple,) or kind._field_defaults:
        raise UnshippableError(f"the named tuple {kind.__qualname__} has more than fields")
    return [kind.__name__, list(kind._fields)]


class _Absent:
    """Stands for what did not travel since nothing comes of it."""


class Decoder:
    """``function`` gives the kernel with a number."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._numbered = function
        self._records: dict[str, Any] = {}

    def decode(self, encoded: Any) -> Any:
        """The value. Imports of Triton what it names, and nothing else."""
        if not isinstance(encoded, dict):
            return encoded
        ((kind, content),) = encoded.items()
        return getattr(self, f"_{kind.replace(' ', '_')}")(content)

    def _float(self, text: str) -> float:
        return float.fromhex(text)

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(map(self.decode, items))

    def _list(self, items: list[Any]) -> list[Any]:
        return list(map(self.decode, items))

    def _dict(self, items: list[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(value) for key, value in items}

    def _constexpr(self, content: Any) -> Any:
        return constexpr(self.decode(content))

    def _dtype(self, name: str) -> Any:
        return dtype(name)

    def _pointer(self, content: list[Any]) -> Any:
        element, address_space, const = content
        return pointer_type(self.decode(element), address_space, const)

    def _function(self, number: int) -> Any:
        return self._numbered(number)

    def _triton(self, content: list[str]) -> Any:
        module, name = content
        return reduce(getattr, name.split("."), self._module(module))

    def _module(self, name: str) -> Any:
        if name.partition(".")[0] != "triton" and name not in _STANDARD:
            raise ValueError(f"{name} is no module of Triton's")
        return importlib.import_module(name)

    def _namespace(self, content: list[Any]) -> ModuleType:
        name, parts = content
        module = ModuleType(name)
        vars(module).update({part: self.decode(value) for part, value in parts.items()})
        return module

    def _record(self, content: list[Any]) -> Any:
        kind, *values = content
        return self._record_type(kind)(*map(self.decode, values))

    def _record_type(self, content: list[Any]) -> Any:
        # Two values of one type have one type here, too.
        if str(content) not in self._records:
            self._records[str(content)] = collections.namedtuple(*content)
        return self._records[str(content)]

    def _instance(self, content: list[Any]) -> Any:
        module, name, parts = content
        kind = self._triton([module, name])
        instance = object.__new__(kind)
        for part, value in parts.items():
            object.__setattr__(instance, part, self.decode(value))
        return instance

    def _absent(self, _: None) -> _Absent:
        return _Absent()
