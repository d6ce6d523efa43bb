"""Archives that nobody has sealed whom this process trusts: nothing of one is unpickled, evaluated or imported.

Of safecache it imports only compiles: it stands before functions of torch that are there from the start.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any

from safecache import compiles

__all__ = [
    "find_code",
    "is_on",
    "is_plain_expression",
    "is_plain_guard",
]


def is_on() -> bool:
    """Tell whether this thread reads an archive that nobody has sealed whom this process trusts."""
    return compiles.current.archive is not None


# What sympy writes of an expression; a call is one of a function that torch or sympy names so.
_PLAIN = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Load),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_SYMPY = re.compile(
    "Abs|Add|And|Eq|Equality|ExprCondPair|Ge|GreaterThan|Gt|Integer|Le|LessThan|Lt|Max|Min|Mod|Mul|Ne|Not|Or|Piecewise|"
    r"Pow|Rational|StrictGreaterThan|StrictLessThan|Unequality|Xor|ceiling|floor|log|sqrt|OpaqueUnaryFn_\w+"
)
# The calls that have a text, or a keyword: what they make is a name and a number.
_SYMBOL = re.compile(r"\bSymbol\('([A-Za-z]\w*)'(?:, [a-z_]+=(?:True|False))*\)")
_FLOAT = re.compile(r"\bFloat\('-?[0-9.]+(?:e[+-]?[0-9]+)?', (?:precision|dps)=[0-9]+\)")
# What torch writes of a guard: a formula of the inputs' sizes, such as ``L['x'].size()[0] <= 8``.
_GUARD = (*_PLAIN, ast.Subscript, ast.Attribute, ast.IfExp)
_SIZES = ("size", "stride", "storage_offset")
_BUILTINS = ("IsNonOverlappingAndDenseIndicator", "abs", "float", "int", "max", "min", "round")
# Functions that an operator gets as its argument: those of a graph are judged by torch's own verifier.
_OPERATOR = re.compile(r"torch\.ops(\.\w+){2,3}|(_operator|math)\.\w+|torch\.sym_\w+")
_NOUNS = {
    "as_operator": "a function",
    "guards_code": "a guard that is no formula",
    "in_spec": "a tree of inputs",
    "out_spec": "a tree of outputs",
}
# Fields that become names in Python.
_NAMES = ("name", "as_name", "forward_arg_names", "user_input_name")


def is_plain_expression(text: str, functions: Collection[str]) -> bool:
    """Tell whether ``text`` is a formula of numbers, symbols and ``functions``: sympy evaluates any text as Python."""

    def can_call(function: ast.expr) -> bool:
        return isinstance(function, ast.Name) and (function.id in functions or bool(_SYMPY.fullmatch(function.id)))

    return _has_only_nodes(_FLOAT.sub("0.5", _SYMBOL.sub(r"\1", text)), _PLAIN, (bool, int, float), can_call)


def is_plain_guard(text: str) -> bool:
    """Tell whether ``text`` is a formula of the inputs' sizes: torch pastes any text into a function, twice."""

    def can_call(function: ast.expr) -> bool:
        if not isinstance(function, ast.Attribute):
            return isinstance(function, ast.Name) and function.id in _BUILTINS
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        return owner == "math" or (owner == "torch" and function.attr.startswith("sym_")) or function.attr in _SIZES

    has_plain_quotes = not any(letter in text for letter in '"#\\')
    return has_plain_quotes and _has_only_nodes(text, _GUARD, (bool, int, float, str), can_call)


def _has_only_nodes(
    text: str, kinds: tuple[type, ...], constants: tuple[type, ...], may_call: Callable[[ast.expr], bool]
) -> bool:
    if not text.isprintable():
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in nodes:
        is_known = not isinstance(node, ast.Call) or (not node.keywords and may_call(node.func))
        is_constant = not isinstance(node, ast.Constant) or (
            isinstance(node.value, constants) and _is_plain_text(str(node.value))
        )
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if not (isinstance(node, kinds) and is_known and is_constant and not name.startswith("_")):
            return False
    return True


def find_code(program: Any) -> str:
    """Return a noun for what in a program of torch's schema would be run as Python, as "a function"; "" if nothing.

    Torch pastes names, guards and trees of inputs into Python when it loads a program, or when that is called. Raises
    any exception for a malformed one.
    """
    return next(_iter_code_nouns(program, "", in_node=False), "")


def _iter_code_nouns(value: Any, field: str, *, in_node: bool) -> Iterator[str]:
    """Yield nouns for such parts of ``value``, the value of this field.

    ``in_node``: it belongs to an operator's arguments, whose texts torch quotes.
    """
    if isinstance(value, str):
        if not (in_node and field in ("as_string", "as_strings")) and not _is_plain(value, field):
            yield _NOUNS.get(field, "a name")
    elif isinstance(value, dict):
        yield from _iter_code_nouns(list(value), "", in_node=in_node)
        yield from _iter_code_nouns(list(value.values()), field, in_node=in_node)
    elif isinstance(value, (list, tuple)):
        yield from chain.from_iterable(_iter_code_nouns(each, field, in_node=in_node) for each in value)
    elif hasattr(value, "_type"):  # a union, of whose fields one is set
        yield from _iter_code_nouns(value.value, str(value.type), in_node=in_node)
    elif dataclasses.is_dataclass(value):
        # The metadata is pasted into comments alone.
        names = (part.name for part in dataclasses.fields(value) if part.name != "metadata")
        in_node = in_node or type(value).__name__ == "NamedArgument"
        yield from chain.from_iterable(_iter_code_nouns(getattr(value, each), each, in_node=in_node) for each in names)


def _is_plain(text: str, field: str) -> bool:
    if field in _NAMES:
        return text.isidentifier() or not text
    if field == "guards_code":
        return is_plain_guard(text)
    if field in ("in_spec", "out_spec"):
        tree = json.loads(text)[1]
        return all(map(_is_plain_text, _iter_texts(tree))) and (field == "out_spec" or _has_plain_keywords(tree))
    if field == "as_operator":
        return _OPERATOR.fullmatch(text) is not None and "__" not in text
    return field == "expr_str" or _is_plain_text(text)  # sympify() judges an expression


def _is_plain_text(text: str) -> bool:
    """Tell whether no part of ``text`` can end a string in Python, or a line."""
    return text.isprintable() and not any(letter in text for letter in "'\"\\")


def _has_plain_keywords(tree: Any) -> bool:
    """Tell whether the keyword arguments, which are the second part of a tree of inputs, are names."""
    parts = tree["children_spec"]
    return len(parts) != 2 or all(map(str.isidentifier, _iter_texts(_decode_context(parts[1]["context"]))))


def _iter_texts(tree: Any) -> Iterator[str]:
    """Yield all texts in a tree."""
    if isinstance(tree, dict):
        for name, each in tree.items():
            yield name
            yield from _iter_texts(_decode_context(each) if name == "context" else each)
    elif isinstance(tree, list):
        for each in tree:
            yield from _iter_texts(each)
    elif isinstance(tree, str):
        yield tree


def _decode_context(context: Any) -> Any:
    """The keys of one part of a tree, which are JSON in its JSON."""
    return json.loads(context) if isinstance(context, str) else context
