"""Archives that nobody has sealed whom this process trusts: nothing of one is unpickled, evaluated or imported.

Imports nothing else of safecache's: it stands before functions of torch that are there from the start.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

__all__ = ["is_on", "is_plain_expression", "name", "reading"]


class _Thread(threading.local):
    name: str | None = None


_thread = _Thread()


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Have this thread read such an archive, of this ``name``, in this block."""
    outer, _thread.name = _thread.name, name
    try:
        yield
    finally:
        _thread.name = outer


def is_on() -> bool:
    """Tell whether this thread is in such a block."""
    return _thread.name is not None


def name() -> str:
    """Return the name of the archive that this thread reads."""
    return _thread.name or ""


# What sympy writes of an expression; a call is one of a function that torch or sympy names so.
_PLAIN = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Load),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_SYMPY = re.compile(r"[A-Z][A-Za-z]*|floor|ceiling|sqrt|log")


def is_plain_expression(text: str, functions: Collection[str]) -> bool:
    """Tell whether ``text`` is a formula of numbers, names and these ``functions``: sympy evaluates any as Python."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in nodes:
        is_known = not isinstance(node, ast.Call) or (
            isinstance(node.func, ast.Name)
            and not node.keywords
            and (node.func.id in functions or _SYMPY.fullmatch(node.func.id) is not None)
        )
        is_number = not isinstance(node, ast.Constant) or isinstance(node.value, (bool, int, float))
        is_public = not isinstance(node, ast.Name) or not node.id.startswith("_")
        if not (isinstance(node, _PLAIN) and is_known and is_number and is_public):
            return False
    return True
