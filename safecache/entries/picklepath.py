"""Which object stops a pickle, and how one gets to it from the root: a type alone is nothing to act on."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import pickle
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Culprit", "find_culprit"]

_LONGEST_PATH = 12
_LONGEST_LABEL = 40


class Culprit(NamedTuple):
    """``path`` reads like the expression that reaches the object, with "…" where it is very long."""

    path: str
    type_name: str
    defined_at: str
    error: BaseException

    def __str__(self) -> str:
        where = f", defined at {self.defined_at}" if self.defined_at else ""
        return f"{self.path} is a {self.type_name}{where}: {type(self.error).__name__}: {self.error}"


class _TracingPickler(pickle._Pickler):
    """Pickles as the C pickler does, and remembers the objects it was inside of when it failed."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=pickle.DEFAULT_PROTOCOL)
        self.inside: list[Any] = []
        self.trail: list[Any] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        self.inside.append(obj)
        try:
            super().save(obj, save_persistent_id)  # type: ignore[misc]  # not in typeshed
        except BaseException:
            if not self.trail:
                self.trail = list(self.inside)
            raise
        finally:
            self.inside.pop()


def find_culprit(root: Any, name: str) -> Culprit | None:
    """The object that makes ``pickle.dumps(root)`` raise; None if it does not. ``name`` stands for the root.

    Pickles once more, slowly: for use after a failure only. Exceptions that are not Exceptions pass through.
    """
    pickler = _TracingPickler()
    try:
        pickler.dump(root)
    except Exception as error:
        trail = pickler.trail or [root]
        return Culprit(_describe_path(trail, name), _type_name(trail[-1]), _definition(trail[-1]), error)
    return None


def _describe_path(trail: list[Any], name: str) -> str:
    labels = [name]
    parent = trail[0]
    between: list[Any] = []  # what pickle made on the way: a state, an argument tuple
    for child in trail[1:]:
        label = _edge(parent, child)
        if label is None:
            between.append(child)
        else:
            labels.append(label)
            parent, between = child, []
    labels += [label for a, b in itertools.pairwise(between) if (label := _edge(a, b)) is not None]
    if len(labels) > _LONGEST_PATH:
        half = _LONGEST_PATH // 2
        labels = [*labels[:half], f"…({len(labels) - _LONGEST_PATH} more)…", *labels[-half:]]
    return "".join(labels)


def _edge(parent: Any, child: Any) -> str | None:
    """How ``child`` is reached from ``parent``; None if it is not."""
    for label, value in _children(parent):
        if value is child:
            return label
    return None


def _children(parent: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(parent, dict):
        for key, value in list(parent.items()):
            yield f"[{_short(key)}]", value
            yield f".keys()[{_short(key)}]", key
    elif isinstance(parent, (list, tuple)):
        fields = getattr(type(parent), "_fields", ())
        for index, value in enumerate(parent):
            yield (f".{fields[index]}" if index < len(fields) else f"[{index}]"), value
    elif isinstance(parent, (set, frozenset)):
        for value in list(parent):
            yield f"{{{_short(value)}}}", value
    elif isinstance(parent, functools.partial):
        yield from ((".func", parent.func), (".args", parent.args), (".keywords", parent.keywords))
    yield from _attributes(parent)


def _attributes(parent: Any) -> Iterator[tuple[str, Any]]:
    # Through object's own lookup: a __getattr__ of the entry must not run, let alone raise, while we look.
    try:
        attributes = object.__getattribute__(parent, "__dict__")
    except AttributeError:
        attributes = {}
    if isinstance(attributes, dict):
        for key, value in list(attributes.items()):
            yield f".{key}", value
    for slot in itertools.chain.from_iterable(_slots(base) for base in type(parent).__mro__):
        try:
            yield f".{slot}", object.__getattribute__(parent, slot)
        except AttributeError:
            continue


def _slots(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _short(value: Any) -> str:
    text = repr(value) if _is_plain(value) else _type_name(value)
    return text if len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "…"


def _is_plain(value: Any) -> bool:
    """Whether its repr runs nobody's code and cannot fail, as that of an int of 5000 digits does."""
    if type(value) is tuple:
        return all(_is_plain(item) for item in value)
    return type(value) in (str, bytes, bool, float, type(None)) or (type(value) is int and value.bit_length() < 64)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _definition(value: Any) -> str:
    if type(value) is types.FunctionType:
        return f"{value.__code__.co_filename}:{value.__code__.co_firstlineno} ({value.__qualname__})"
    try:
        return inspect.getsourcefile(type(value)) or ""
    except (TypeError, OSError):
        return ""
