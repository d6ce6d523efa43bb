"""Which names of its surroundings a kernel uses, told from its source alone."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field

__all__ = ["Use", "used"]


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
