"""Digests of Python functions: the same in every process, wherever their source lies, until what they do is edited."""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import hashlib
import importlib.util
import json
import opcode
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from safecache.fingerprints import sources
from safecache.settings import config
from safecache.signing import provenance

__all__ = ["Looked", "digest", "digest_named", "digest_values", "find_at_line", "look_into"]

_DIGITS = 16
# Of those that an op's code names, what differs from host to host, and from start to start.
_OF_HOST = re.compile(
    r"_(ADDR|ADDRESS|DEVICES|DIR|HOME|HOST|HOSTNAME|IP|LOG|LOGGING|LOGS|NODE|PATH|PID|POD|PORT|SOCKET|URI|URL)(?=_|$)"
)


def digest(callables: Iterable[Any]) -> str:
    """Digest what users have written in ``callables``, and what that finds by name; "" if all of it is upstream's."""
    return look_into(callables).digest


class Looked(NamedTuple):
    """A digest of functions and of the values that they find, and the names of the ``modules`` of all of these."""

    digest: str
    modules: frozenset[str]


def look_into(callables: Iterable[Any], *, into_objects: bool = True) -> Looked:
    """Look at functions, at the values that they use by name, and at whatever is behind those.

    Not ``into_objects``: at what containers and instances have no more than at what differs for having been used.
    """
    walk = _Walk(into_objects=into_objects)
    for number, each in enumerate(callables):
        if each is not None:
            walk.add(str(number), each)
    return walk.finish()


class _Walk:
    """Follows functions to what they find: by names of globals and attributes, in containers and in closures.

    The value of an attribute counts once a function that was found uses its name, or a string that is equal to it.
    """

    def __init__(self, *, into_objects: bool) -> None:
        self._into_objects = into_objects
        self._seen: dict[int, Any] = {}  # which keeps them alive, and their numbers theirs
        self._waiting: collections.deque[tuple[str, Any]] = collections.deque()
        self._offered: dict[str, list[tuple[str, Any]]] = {}
        self._used: set[str] = set()
        self._rows: list[Any] = []
        self._modules: set[str] = set()

    def add(self, path: str, value: Any) -> None:
        if _is_plain(value):
            is_place = isinstance(value, str) and value.startswith(os.sep)
            self._rows.append([path, "a path" if is_place else provenance.make_json_form(value)])
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            self._waiting.append((path, value))

    def finish(self) -> Looked:
        while self._waiting:
            if len(self._seen) > _MOST:
                raise LookupError(f"it finds more than {_MOST} objects by name")
            path, value = self._waiting.popleft()
            function = _find_function(value)
            if function is not None:
                self._add_function(path, function, getattr(value, "__self__", None))
            elif isinstance(value, type):
                self._add_class(path, value)
            elif isinstance(value, types.ModuleType):
                if self._note_module(value.__name__):
                    self._offer_attributes(path, vars(value))
            else:
                self._add_object(path, value)
        if not self._rows:
            return Looked("", frozenset(self._modules))
        if _ENVIRONMENT & self._used:
            self._rows += [["environment", name, value] for name, value in self._find_variables()]
        text = json.dumps(sorted(map(json.dumps, self._rows)))
        return Looked(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS], frozenset(self._modules))

    def _find_variables(self) -> Iterator[tuple[str, str]]:
        """Yield the variables that the code names, or of which it has the beginning of the name."""
        beginnings = tuple(name for name in self._used if name.endswith("_") and len(name) > 2)
        for name, value in config.get_environment().items():
            is_named = name in self._used or name.startswith(beginnings)
            if is_named and not _OF_HOST.search(f"_{name.upper()}") and not value.startswith(os.sep):
                yield name, value

    def _offer_attributes(self, path: str, attributes: Mapping[str, Any]) -> None:
        for name, value in list(attributes.items()):
            if name in self._used:
                self.add(f"{path}.{name}", value)
            else:
                self._offered.setdefault(name, []).append((f"{path}.{name}", value))

    def _use_names(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._used:
                self._used.add(name)
                for path, value in self._offered.pop(name, ()):
                    self.add(path, value)

    def _note_module(self, module: str | None) -> bool:
        if sources.is_upstream(module):
            self._modules.update(filter(None, [sources.find_server(module)]))
            return False
        self._modules.add(str(module))
        return True

    def _add_function(self, path: str, function: types.FunctionType, bound: Any) -> None:
        if bound is not None:
            self.add(f"{path}.self", bound)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for name, cell in cells:
            with suppress(ValueError):  # not bound yet
                inner = cell.cell_contents
                if self._note_module(function.__module__) or callable(inner) or _is_formula(inner):
                    self.add(f"{path}.{name}", inner)
        if not self._note_module(function.__module__):
            return
        facts = _read_code(function.__code__)
        self._rows.append([path, facts.digest])
        for number, value in enumerate(function.__defaults__ or ()):
            self.add(f"{path} {number}=", value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self.add(f"{path} {name}=", value)
        self._offer_attributes(path, vars(function))
        self._use_names(facts.names)
        for name in facts.names:
            if name in function.__globals__ and name not in facts.stored and not _DUNDER.fullmatch(name):
                self.add(f"{function.__module__}.{name}", function.__globals__[name])

    def _add_class(self, path: str, value: type) -> None:
        # Torch makes one for each gradient, around what it was given.
        if not hasattr(sys.modules.get(value.__module__), value.__qualname__):
            for name, found in vars(value).items():
                if _find_function(found) is not None:
                    self.add(f"{path}.{name}", found)
        self.add(f"{path}.class", type(value))
        for each in value.__mro__:
            if self._note_module(each.__module__):
                called = {name: found for name, found in vars(each).items() if _DUNDER.fullmatch(name)}
                for name in sorted(called.keys() - _OF_CLASSES):
                    if not _is_plain(called[name]):
                        self.add(f"{path}.{name}", called[name])
                self._offer_attributes(path, {name: found for name, found in vars(each).items() if name not in called})

    def _add_object(self, path: str, value: Any) -> None:
        if isinstance(value, property):
            self.add(path, (value.fget, value.fset))
        elif "__wrapped__" in getattr(value, "__dict__", ()):  # such as what lru_cache() makes
            self.add(f"{path}.wrapped", value.__wrapped__)
        elif not self._into_objects:
            return
        elif isinstance(value, enum.Enum):
            self._rows.append([path, str(value)])
            self.add(f"{path}.class", type(value))
        elif "_modules" in getattr(value, "__dict__", ()) or not all(
            sources.is_upstream(each.__module__) for each in type(value).__mro__
        ):
            self._add_instance(path, value)
        else:
            self._rows += [[path, text] for text in _iter_text(value)]
        for name, found in _iter_content(value):
            self.add(f"{path} {name}", found)

    def _add_instance(self, path: str, value: Any) -> None:
        self.add(f"{path}.class", type(value))
        kept = getattr(value, "__dict__", {})
        for attributes in (kept, *(kept.get(each) or {} for each in ("_modules", "_buffers", "_parameters"))):
            self._offer_attributes(path, attributes)
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        self._offer_attributes(path, {name: getattr(value, name) for name in slots if hasattr(value, name)})


def _iter_content(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container holds, or an upstream object keeps of a user's, in an order that every process has."""
    if isinstance(value, functools.partial):
        yield "function", value.func
        yield from ((f"{name}=", found) for name, found in (*enumerate(value.args), *value.keywords.items()))
    elif isinstance(value, (dict, types.MappingProxyType)):
        for key, found in list(value.items()):
            yield f"[{_make_label(key)}]", found
            yield "key", key
    elif isinstance(value, (tuple, list, collections.deque)):
        yield from ((f"[{number}]", found) for number, found in enumerate(list(value)))
    elif isinstance(value, (set, frozenset)):
        yield from (("{}", found) for found in sorted(value, key=_make_label))
    elif _is_formula(value):
        yield from (("gradient", value._backward_fn), ("context", value._setup_context_fn))
    elif isinstance(value, contextvars.ContextVar):
        with suppress(LookupError):  # without a value here
            yield "value", value.get()
    elif any(each.__module__ in ("argparse", "collections", "types") for each in type(value).__mro__):
        yield from getattr(value, "__dict__", {}).items()


def _iter_text(value: Any) -> Iterator[str]:
    """Yield the value of what has one and no attributes: numbers, dates, arrays."""
    kind = type(value)
    if isinstance(value, (range, slice, bytearray)) or kind.__module__ in ("fractions", "decimal", "datetime", "array"):
        yield repr(value)
    elif isinstance(value, re.Pattern):
        yield repr((value.pattern, value.flags))
    elif kind.__module__ == "numpy" and hasattr(value, "tobytes") and not value.dtype.hasobject:
        yield repr((value.dtype, value.shape, hashlib.sha256(value.tobytes()).hexdigest()))


_DUNDER = re.compile(r"__\w+__")
# What every class has, and no call goes through.
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__"})
# By which code asks for a variable of the environment.
_ENVIRONMENT = frozenset({"environ", "getenv", "getenvb"})
_STORE_GLOBAL = opcode.opmap["STORE_GLOBAL"]
# Objects: some seconds.
_MOST = 200_000


def _make_label(value: Any) -> str:
    """A text that is the same in every process, unlike that of an object."""
    if _is_plain(value):
        return json.dumps(provenance.make_json_form(value))
    if hasattr(value, "_schema"):
        return str(value)
    return f"{type(value).__qualname__} {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


class _Code(NamedTuple):
    """A code object: what is used by name in it, and the globals that it changes, such as a count of calls."""

    digest: str
    names: tuple[str, ...]
    stored: frozenset[str]


@functools.lru_cache(maxsize=1 << 16)
def _read_code(code: types.CodeType) -> _Code:
    stored: frozenset[str] = frozenset()
    if _STORE_GLOBAL in code.co_code[::2]:
        import dis

        stored = frozenset(step.argval for step in dis.get_instructions(code) if step.opcode == _STORE_GLOBAL)
    return _Code(provenance.digest_code(code), tuple(dict.fromkeys(_iter_names(code))), stored)


def _iter_names(code: types.CodeType) -> Iterator[str]:
    """The names that it uses, and the strings that it has, which may be names of attributes."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _iter_names(constant)
        elif isinstance(constant, str):
            yield constant


def _find_function(value: Any) -> types.FunctionType | None:
    while True:
        if isinstance(value, (types.MethodType, staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, types.FunctionType):
            return value
        else:
            return None


def _is_formula(value: Any) -> bool:
    """Tell whether torch keeps the formula of a gradient in ``value``."""
    return "_backward_fn" in getattr(value, "__dict__", ())


def _is_plain(value: Any) -> bool:
    """Tell whether ``value`` is a constant by itself, not changed in place, which would differ for having been used."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))) and not isinstance(value, enum.Enum):
        return True
    return type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout", "memory_format")


def find_at_line(module: types.ModuleType, line: int) -> str:
    """The qualified name of the function of ``module`` whose code begins in this line; "" if none can be named."""
    for name, code in _iter_defined(module):
        if code.co_firstlineno == line:
            return name
    return ""


def _iter_defined(module: types.ModuleType) -> Iterator[tuple[str, types.CodeType]]:
    for name, value in list(vars(module).items()):
        function = _unwrap_function(value)
        if function is not None and function.__module__ == module.__name__:
            yield name, function.__code__
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for inner, attribute in list(vars(value).items()):
                method = _unwrap_function(getattr(attribute, "fget", attribute))
                if method is not None:
                    yield f"{name}.{inner}", method.__code__


def _unwrap_function(value: Any) -> types.FunctionType | None:
    function = _find_function(value)
    while function is not None and hasattr(function, "__wrapped__"):
        function = _find_function(function.__wrapped__)
    return function


def digest_values(module: str, name: str) -> str | None:
    """Digest what this function finds by name outside; None while its module is not imported."""
    found = _find_named(module, name)
    return look_into([found], into_objects=False).digest if found is not None else None


def _find_named(module: str, name: str) -> types.FunctionType | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return _unwrap_function(getattr(found, "fget", found))


def digest_named(module: str, name: str) -> str:
    """The digest of the code that this ``module`` has under a qualified ``name`` now; "" if that cannot be known.

    A module that is not imported yet stays so: its source is compiled, and not run.
    """
    if sys.modules.get(module) is not None:
        function = _find_named(module, name)
        return provenance.digest_code(function.__code__) if function is not None else ""
    code = _load_file_code(module)
    for part in name.split("."):
        inner = [each for each in code.co_consts if getattr(each, "co_name", "") == part] if code is not None else []
        code = inner[-1] if inner else None
    return provenance.digest_code(code) if code is not None else ""


def _load_file_code(module: str) -> types.CodeType | None:
    if module.rpartition(".")[0] not in ("", *sys.modules):
        return None  # to look for it would import its package
    with suppress(ImportError, ValueError, AttributeError, SyntaxError, OSError):
        spec = importlib.util.find_spec(module)
        code: types.CodeType | None = spec.loader.get_code(module) if spec is not None else None  # type: ignore[union-attr]
        return code
    return None
