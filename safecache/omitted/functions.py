"""Digests of Python functions: the same in every process, wherever their source lies, until what they do is edited."""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

__all__ = ["at_line", "code_digest", "digest", "named"]

# What determines a call, by names that all Pythons, and torch's serializable form of a code object, have in common.
_FIELDS = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)
_DIGITS = 16
# What torch's version stands for, and Python's.
_UPSTREAM = frozenset({"torch", "triton", "sympy", "numpy", "functools", "contextlib", "safecache", "wrapt"})
# Functions that one refers to, by way of others. In the order of their names in the code, so that it is the same ones.
_MOST = 256


def code_digest(code: Any, *, of: str = "", line: bool = False) -> str:
    """The SHA-256, in hex, of a code object, of what it belongs to, and of the number of its first ``line``."""
    stated = [of, _stated(code), code.co_firstlineno if line else None]
    return hashlib.sha256(json.dumps(stated).encode()).hexdigest()


def _stated(value: Any) -> Any:
    """A JSON form that is the same in every process. It keeps types apart: 1, 1.0 and True are three constants."""
    if hasattr(value, "co_code"):
        return [[name, _stated(getattr(value, name, None))] for name in _FIELDS]
    if isinstance(value, tuple):
        return ["tuple", *map(_stated, value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(map(_stated, value), key=json.dumps)]
    return [type(value).__name__, repr(value)]


def digest(callables: Iterable[Any]) -> str:
    """Of what users have written in ``callables``, and in what those call by name; "" if all of it is upstream's."""
    walk = _Walk()
    for each in callables:
        walk.add(each)
    return walk.finish()


class _Walk:
    """Collects the code of functions, of what they refer to, and the plain constants that they find outside."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._waiting: list[Any] = []
        self._stated: list[Any] = []

    def add(self, value: Any) -> None:
        if id(value) not in self._seen and len(self._seen) < _MOST:
            self._seen.add(id(value))
            self._waiting.append(value)

    def finish(self) -> str:
        while self._waiting:
            self._visit(self._waiting.pop(0))
        if not self._stated:
            return ""
        return hashlib.sha256(json.dumps(self._stated).encode()).hexdigest()[:_DIGITS]

    def _visit(self, value: Any) -> None:
        function = _function_of(value)
        if function is None:
            for inner in _within(value):
                self.add(inner)
            return
        ours = _top(function.__module__) not in _UPSTREAM
        if ours:
            defaults = [function.__defaults__ or (), tuple(sorted((function.__kwdefaults__ or {}).items()))]
            self._stated.append([_stated(function.__code__), [_plain(each) for each in defaults]])
        for name, found in _surroundings(function, ours):
            if ours and _is_plain(found):
                self._stated.append([name, _stated(found)])
            elif _is_followed(found):
                self.add(found)


def _surroundings(function: types.FunctionType, ours: bool) -> Iterator[tuple[str, Any]]:
    """The variables that it has from outside, by name. Of an upstream function those alone that it encloses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents
    if not ours:
        return
    names = tuple(_names(function.__code__))
    changed = set(_stored(function.__code__))
    for name in names:
        found = function.__globals__.get(name, _MISSING)
        if found is _MISSING or name in changed:
            continue
        if isinstance(found, types.ModuleType):
            if _top(found.__name__) not in _UPSTREAM:
                yield from ((f"{name}.{each}", vars(found)[each]) for each in names if each in vars(found))
        else:
            yield name, found


_MISSING = object()
_STORE_GLOBAL = "STORE_GLOBAL"


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _stored(code: types.CodeType) -> Iterator[str]:
    """The globals that it changes: what counts calls, for one, says nothing about what is done."""
    import dis

    yield from (step.argval for step in dis.get_instructions(code) if step.opname == _STORE_GLOBAL)


def _function_of(value: Any) -> types.FunctionType | None:
    while True:
        if isinstance(value, (types.MethodType, staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, types.FunctionType):
            return value
        else:
            return None


def _within(value: Any) -> Iterator[Any]:
    """What a callable that is no function calls, or what an object of upstream's keeps for that."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, type):
        if value.__module__ != "builtins":
            yield from (each for each in vars(value).values() if _function_of(each) is not None)
    elif _is_formula(value):
        yield from (value._backward_fn, value._setup_context_fn)
    elif _top(type(value).__module__) not in _UPSTREAM and callable(value):
        yield vars(type(value)).get("__call__")


def _is_followed(value: Any) -> bool:
    return callable(value) or _is_formula(value)


def _is_formula(value: Any) -> bool:
    """Whether torch keeps the formula of a gradient in it."""
    return "_backward_fn" in getattr(value, "__dict__", ())


def _is_plain(value: Any) -> bool:
    """Whether it is a constant by itself: nothing that is changed in place, which would differ for having been used."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), enum.Enum)):
        return True
    return type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout", "memory_format")


def _plain(value: tuple[Any, ...]) -> Any:
    return [_stated(each) if _is_plain(each) else type(each).__qualname__ for each in value]


def _top(module: str | None) -> str:
    top = (module or "").partition(".")[0]
    return "functools" if top in sys.stdlib_module_names and top != "__main__" else top


def at_line(module: types.ModuleType, line: int) -> str:
    """The qualified name of the function of ``module`` whose code begins in this line; "" if none can be named."""
    for name, code in _defined(module):
        if code.co_firstlineno == line:
            return name
    return ""


def _defined(module: types.ModuleType) -> Iterator[tuple[str, types.CodeType]]:
    for name, value in list(vars(module).items()):
        function = _unwrapped(value)
        if function is not None and function.__module__ == module.__name__:
            yield name, function.__code__
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner, attribute in list(vars(value).items()):
                method = _unwrapped(getattr(attribute, "fget", attribute))
                if method is not None:
                    yield f"{name}.{inner}", method.__code__


def _unwrapped(value: Any) -> types.FunctionType | None:
    function = _function_of(value)
    while function is not None and hasattr(function, "__wrapped__"):
        function = _function_of(function.__wrapped__)
    return function


def named(module: str, name: str) -> str:
    """The digest of the code that this ``module`` has under a qualified ``name`` now; "" if that cannot be known.

    A module that is not imported yet stays so: its source is compiled, and not run.
    """
    loaded = sys.modules.get(module)
    if loaded is not None:
        found: Any = loaded
        for part in name.split("."):
            found = vars(found).get(part) if hasattr(found, "__dict__") else None
        function = _unwrapped(getattr(found, "fget", found))
        return code_digest(function.__code__) if function is not None else ""
    code = _code_in_file(module)
    for part in name.split("."):
        inner = [each for each in code.co_consts if getattr(each, "co_name", "") == part] if code is not None else []
        code = inner[-1] if inner else None
    return code_digest(code) if code is not None else ""


def _code_in_file(module: str) -> types.CodeType | None:
    if module.rpartition(".")[0] not in ("", *sys.modules):
        return None  # to look for it would import its package
    with suppress(ImportError, ValueError, AttributeError, SyntaxError, OSError):
        spec = importlib.util.find_spec(module)
        code: types.CodeType | None = spec.loader.get_code(module) if spec is not None else None  # type: ignore[union-attr]
        return code
    return None
