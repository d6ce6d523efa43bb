"""What to compile of a kernel, written short."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """``way``: how the kernel travels, "kernel" being as source."""

    name: str
    kernel: Any
    signature: dict[str, Any]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]
    arch: int
    way: str


def case(kernel, types="", *, name=None, arch=90, way="kernel", constants=None, aligned=True, **more) -> Case:
    """``types``: of the arguments that are not constants, in order; ``more``: constants by name, and options."""
    given = dict(zip((n for n in kernel.arg_names if n not in more), types.split(), strict=True))
    signature = {n: given.get(n, "constexpr") for n in kernel.arg_names}
    known = {(kernel.arg_names.index(n),): value for n, value in more.items() if n in kernel.arg_names}
    options = {n: value for n, value in more.items() if n not in kernel.arg_names}
    pointers = [i for i, kind in enumerate(signature.values()) if kind[0] == "*" and aligned]
    attributes = {(i,): [["tt.divisibility", 16]] for i in pointers}
    return Case(name or kernel.__name__, kernel, signature, known | (constants or {}), attributes, options, arch, way)
