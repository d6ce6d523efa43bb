"""A kernel that travelled as its source, written as a program: for a crash before Triton has made any IR of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["script"]

_PROGRAM = '''\
"""Has Triton {triton} crash as it did when it read {kernel}. Needs no GPU: python reproduce.py"""

from __future__ import annotations

import importlib
import os
import tempfile
from types import ModuleType

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def module(name, parts):
    made = ModuleType(name)
    vars(made).update(parts)
    return made


{values}


{functions}


{aliases}
source = ASTSource({function}, {signature}, {constants}, {attributes})
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
triton.compile(source, target=GPUTarget({backend!r}, {arch!r}, {warp_size!r}), options={options!r})
'''


class _UnwritableError(Exception):
    """There is no expression that gives this value, or two things have one name."""


def script(encoded: dict[str, Any], described: dict[str, Any], options: dict[str, Any]) -> str | None:
    """The program; None if it cannot be written. ``encoded``: as encoding.encode() has it; the rest as in a report."""
    if encoded.get("kind") != "kernel" or encoded["language"] != "triton":
        return None
    try:
        return _program(encoded, described, options)
    except _UnwritableError:
        return None


def _program(encoded: dict[str, Any], described: dict[str, Any], options: dict[str, Any]) -> str:
    functions = encoded["functions"]
    names = [record["name"] for record in functions]
    known = _globals(encoded) | {name: {"function": number} for number, name in enumerate(names)}
    if len(set(names)) < len(names) or any(known[name] != value for name, value in _globals(encoded).items()):
        raise _UnwritableError
    others = {name: value for name, value in known.items() if name not in names and value != {"absent": None}}
    values = [_assignment(name, value, names) for name, value in others.items() if not _is_function(value)]
    return _PROGRAM.format(
        triton=described["versions"]["triton"],
        kernel=described["kernel"],
        values="\n".join(values),
        functions="\n\n\n".join(_decorated(record, names) for record in functions),
        aliases="\n".join(_assignment(name, value, names) for name, value in others.items() if _is_function(value)),
        function=names[0],
        signature=_expression(encoded["signature"], names),
        constants=_expression(encoded["constants"], names),
        attributes=_expression(encoded["attributes"], names),
        options=options,
        **described["target"],
    )


def _globals(encoded: dict[str, Any]) -> dict[str, Any]:
    """What the functions find by name, in one module. Raises _UnwritableError if that cannot be."""
    found: dict[str, Any] = {}
    for name, value in _found_by_name(encoded):
        if found.setdefault(name, value) != value:
            raise _UnwritableError
    return found


def _found_by_name(encoded: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for scope in (*encoded["scopes"], *(record["free"] for record in encoded["functions"])):
        yield from scope.items()


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and "function" in value


def _assignment(name: str, value: Any, names: list[str]) -> str:
    return f"{name} = {_expression(value, names)}"


def _decorated(record: dict[str, Any], names: list[str]) -> str:
    given = {name: value for name, value in record["settings"].items() if value not in (None, {"list": []})}
    arguments = ", ".join(_assignment(name, value, names) for name, value in given.items())
    return f"@triton.jit({arguments})\n{record['source'].rstrip()}"


def _expression(encoded: Any, names: list[str]) -> str:
    """Of what values.Encoder has encoded."""
    if not isinstance(encoded, dict):
        return repr(encoded)
    ((kind, content),) = encoded.items()
    if kind == "triton":
        return f"importlib.import_module({content[0]!r}).{content[1]}"
    if kind == "function":
        return names[content]
    if kind == "namespace":
        name, parts = content
        pairs = (f"{part!r}: {_expression(value, names)}" for part, value in parts.items())
        return f"module({name!r}, {{{', '.join(pairs)}}})"
    if kind == "dict":
        return f"{{{', '.join(f'{_expression(k, names)}: {_expression(v, names)}' for k, v in content)}}}"
    return _call(kind, content, names)


def _call(kind: str, content: Any, names: list[str]) -> str:
    if kind in ("float", "dtype", "module"):
        function = {"float": "float.fromhex", "dtype": "tl.dtype", "module": "importlib.import_module"}[kind]
        return f"{function}({content!r})"
    if kind == "constexpr":
        return f"tl.constexpr({_expression(content, names)})"
    if kind == "pointer":
        element, address_space, const = content
        return f"tl.pointer_type({_expression(element, names)}, {address_space!r}, {const!r})"
    if kind in ("tuple", "list"):
        return f"{kind}([{', '.join(_expression(each, names) for each in content)}])"
    raise _UnwritableError
