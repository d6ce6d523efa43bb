"""How the values that a kernel uses are sent to a worker: as the parts that they are made from, or by name."""

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
    "find_class",
    "find_language",
    "find_uses",
]

_KERNELS = {
    "triton": ("triton.runtime.jit", "JITFunction"),
    "gluon": ("triton.experimental.gluon._runtime", "GluonJITFunction"),
}
_SOURCES = {
    "triton": ("triton.compiler.compiler", "ASTSource"),
    "gluon": ("triton.experimental.gluon._runtime", "GluonASTSource"),
}


def find_language(value: Any) -> str | None:
    """The language of a kernel or its source: "triton" or "gluon"; None if its class is not Triton's."""
    for places in (_KERNELS, _SOURCES):
        for language, (module, name) in places.items():
            # Without an import: Gluon's takes 20 ms, in a process that may not need it.
            if type(value) is getattr(sys.modules.get(module), name, None):
                return language
    return None


def find_class(language: str, *, is_source: bool = False) -> Any:
    """The class of the kernels of this language, or of their sources."""
    module, name = (_SOURCES if is_source else _KERNELS)[language]
    return getattr(importlib.import_module(module), name)


@dataclass(slots=True)
class Use:
    """How a name is used: which of its attributes, and whether also by itself."""

    attributes: dict[str, Use] = field(default_factory=dict)
    itself: bool = False
    # False if its value does not affect what is compiled: an argument's annotation, or a name that is also local.
    needed: bool = False


# A kernel is compiled for many configurations; parsing it takes longer than all other steps of sending it.
@functools.lru_cache(maxsize=1024)
def find_uses(source: str) -> dict[str, Use]:
    """The uses of names, builtins and locals included, in the one function of ``source``. Raises SyntaxError.

    Triton looks a name up among the locals that it has met so far, and then among the globals: a name that is local
    in Python can be global here.
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
            self._add_use(node.id, [])
        else:
            self.local.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            path.append(value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self._add_use(value.id, path[::-1])
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

    def _add_use(self, name: str, path: list[str]) -> None:
        use = self.names.setdefault(name, Use())
        use.needed |= not self.annotating
        for attribute in path:
            use = use.attributes.setdefault(attribute, Use())
            use.needed |= not self.annotating
        use.itself = True


# Triton lets kernels use these of the standard library.
_STANDARD = ("math", "copy")
_ALL = Use(itself=True, needed=True)
# Attributes that only some releases of Python add to each class.
_NO_MEMBERS = {
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__orig_bases__",
    "__static_attributes__",
}
_NO_MEMBERS |= {"__firstlineno__", "__annotate__"}


class UnshippableError(Exception):
    """Error of a value that cannot be rebuilt in another process. The text says which, and why."""


class UnshippableKernelError(UnshippableError):
    """A kernel cannot be sent, and so nothing that uses it: other users would find half of it."""


class Encoder:
    """``function`` returns the number under which a kernel is sent; without ``lenient``, nothing may be left out.

    Without a ``function`` no value may be a kernel.
    """

    def __init__(self, function: Callable[[Any], int] | None = None, lenient: bool = True) -> None:
        self._function = function
        self._lenient = lenient

    def encode(self, value: Any, use: Use = _ALL) -> Any:
        """The value, JSON-able. Raises UnshippableError."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        encode = _ENCODERS.get(kind)
        if encode is not None:
            return encode(self, value)
        if isinstance(value, ModuleType):
            return self._encode_module(value, use)
        if _is_of_triton(value):
            return {"triton": [value.__module__, value.__qualname__]}
        if isinstance(value, JITFunction) and self._function is not None:
            return {"function": self._function(value)}
        return self._encode_other(value)

    def encode_used(self, value: Any, use: Use, name: str) -> Any:
        """Encode ``value``. If lenient, replace one that is not needed and cannot be sent by {"absent": None}."""
        try:
            return self.encode(value, use)
        except UnshippableError as error:
            if use.needed or not self._lenient or isinstance(error, UnshippableKernelError):
                raise type(error)(f"{name}: {error}") from None
            return {"absent": None}

    def _encode_module(self, module: ModuleType, use: Use) -> Any:
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

    def _encode_other(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"record": [_list_fields(kind), *map(self.encode, value)]}
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            return {"record type": _list_fields(value)}
        if dataclasses.is_dataclass(value) and _is_of_triton(kind):
            content = {name: self.encode(part) for name, part in vars(value).items()}
            return {"instance": [kind.__module__, kind.__qualname__, content]}
        name = getattr(value, "__qualname__", None)
        told = f"the {kind.__name__} {name}" if isinstance(name, str) else f"a {kind.__module__}.{kind.__qualname__}"
        raise UnshippableError(f"{told} cannot be made again in another process")


_ENCODERS: dict[type, Callable[[Encoder, Any], Any]] = {
    # JSON knows neither infinity nor NaN.
    float: lambda _, value: {"float": value.hex()},
    dtype: lambda _, value: {"dtype": value.name},
    tuple: lambda encoder, items: {"tuple": [encoder.encode(item) for item in items]},
    list: lambda encoder, items: {"list": [encoder.encode(item) for item in items]},
    dict: lambda encoder, items: {"dict": [[*map(encoder.encode, item)] for item in items.items()]},
    constexpr: lambda encoder, value: {"constexpr": encoder.encode(value.value)},
    pointer_type: lambda encoder, value: {
        "pointer": [encoder.encode(value.element_ty), value.address_space, value.const]
    },
}


def _is_of_triton(value: Any) -> bool:
    """Whether this function or class is Triton's own and can be found there by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.partition(".")[0] != "triton":
        return False
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(module)) is value


def _list_fields(kind: Any) -> list[Any]:
    """The name and fields of a class of named tuples. Raises UnshippableError if it has more."""
    plain = collections.namedtuple(kind.__name__, kind._fields)  # type: ignore[misc]
    if vars(kind).keys() - vars(plain).keys() - _NO_MEMBERS or kind.__bases__ != (tuple,) or kind._field_defaults:
        raise UnshippableError(f"the named tuple {kind.__qualname__} has more than fields")
    return [kind.__name__, list(kind._fields)]


class _Absent:
    """Placeholder for a value that was not sent because it is not needed."""


class Decoder:
    """``function`` returns the kernel with a given number."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self._records: dict[str, Any] = {}

    def decode(self, encoded: Any) -> Any:
        """The value. Imports only modules of Triton and _STANDARD. Raises ValueError for others."""
        if not isinstance(encoded, dict):
            return encoded
        ((kind, content),) = encoded.items()
        return _DECODERS[kind](self, content)

    def _decode_instance(self, content: list[Any]) -> Any:
        module, name, parts = content
        instance = object.__new__(_find_member(module, name))
        for part, value in parts.items():
            object.__setattr__(instance, part, self.decode(value))
        return instance

    def _decode_namespace(self, content: list[Any]) -> ModuleType:
        name, parts = content
        module = ModuleType(name)
        vars(module).update({part: self.decode(value) for part, value in parts.items()})
        return module

    def _decode_record_type(self, content: list[Any]) -> Any:
        # Values of the same type have the same type here, too.
        if str(content) not in self._records:
            self._records[str(content)] = collections.namedtuple(*content)
        return self._records[str(content)]


def _import_module(name: str) -> ModuleType:
    if name.partition(".")[0] != "triton" and name not in _STANDARD:
        raise ValueError(f"{name} is no module of Triton's")
    return importlib.import_module(name)


def _find_member(module: str, name: str) -> Any:
    return reduce(getattr, name.split("."), _import_module(module))


# By what _ENCODERS and the other methods of an Encoder call it.
_DECODERS: dict[str, Callable[[Decoder, Any], Any]] = {
    "float": lambda _, text: float.fromhex(text),
    "dtype": lambda _, name: dtype(name),
    "tuple": lambda decoder, items: tuple(map(decoder.decode, items)),
    "list": lambda decoder, items: list(map(decoder.decode, items)),
    "dict": lambda decoder, items: {decoder.decode(key): decoder.decode(value) for key, value in items},
    "constexpr": lambda decoder, value: constexpr(decoder.decode(value)),
    "pointer": lambda decoder, parts: pointer_type(decoder.decode(parts[0]), *parts[1:]),
    "function": lambda decoder, number: decoder.function(number),
    "module": lambda _, name: _import_module(name),
    "namespace": Decoder._decode_namespace,
    "triton": lambda _, names: _find_member(*names),
    "instance": Decoder._decode_instance,
    "record": lambda decoder, parts: decoder._decode_record_type(parts[0])(*map(decoder.decode, parts[1:])),
    "record type": Decoder._decode_record_type,
    "absent": lambda *_: _Absent(),
}
