"""The classes of Triton's languages: of their kernels, and of what is compiled of these."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["kernel_class", "language_of", "source_class"]

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
