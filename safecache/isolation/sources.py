"""What is to be compiled, made again in a worker from what ``encoding`` has made of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import Language
from triton.compiler.compiler import ASTSource

from safecache.isolation.functions import Rebuilt
from safecache.isolation.languages import source_class

__all__ = ["rebuild"]


def rebuild(encoded: dict[str, Any], directory: str) -> Any:
    """What ``triton.compile`` takes; a file that this takes is put into ``directory``. Raises OSError, ValueError."""
    if encoded["kind"] == "kernel":
        return _kernel(encoded)
    return _ir(encoded) if encoded["kind"] == "ir" else _Lowered(encoded, directory)


def _kernel(encoded: dict[str, Any]) -> Any:
    rebuilt = Rebuilt(encoded)
    kernel = rebuilt.kernel()
    if encoded["symbol"] is not None:
        kernel._repr = lambda _: encoded["symbol"]
    signature, constants, attributes = (
        rebuilt.decoder.decode(encoded[n]) for n in ("signature", "constants", "attributes")
    )
    source = source_class(encoded["language"])(kernel, signature, constants, attributes)
    source.name = encoded["name"]
    return source


class _Lowered(ASTSource):  # type: ignore[misc]
    """What the parent's front end has made, so that Triton goes on from there."""

    def __init__(self, encoded: dict[str, Any], directory: str) -> None:
        self.name, self.ext, self._hash = encoded["name"], encoded["ext"], encoded["hash"]
        self.language = Language[encoded["language"].upper()]
        self._path = os.path.join(directory, "front-end.mlir")
        Path(self._path).write_text(encoded["text"], encoding="utf-8")

    def hash(self) -> str:
        return str(self._hash)

    def make_ir(self, _target: Any, _options: Any, _implementation: Any, _modules: Any, context: Any) -> Any:
        module = ir.parse_mlir_module(self._path, context)
        module.context = context
        return module

    def parse_options(self) -> dict[str, Any]:
        return {}


def _ir(encoded: dict[str, Any]) -> str:
    # By its own path, which is what the locations in it are told by.
    path: str = encoded["path"]
    if Path(path).read_text() != encoded["text"]:
        raise ValueError(f"{path} has changed since it was read")
    return path
