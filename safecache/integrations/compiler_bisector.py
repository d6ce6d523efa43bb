"""torch._inductor.compiler_bisector: its state is text in the cache, of which each torch.compile() evaluates a part."""

from __future__ import annotations

import locale
import os
from collections.abc import Callable
from typing import Any

from safecache.built_code import sources
from safecache.patching.hook import verifier
from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Kind
from safecache.store import gate

__all__ = ["read_lines_from_file", "write_lines_to_file"]


@verifier(
    "torch._inductor.compiler_bisector:CompilerBisector.read_lines_from_file(cls, file_path)",
    why="During a bisection each torch.compile() evals text from a file in the cache directory, whoever wrote it.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/compiler_bisector.py#L355",
)
def read_lines_from_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CompilerBisector.read_lines_from_file: an unattested file is quarantined, and read as empty."""

    def read(file_path: str) -> Any:
        if not os.path.lexists(file_path):  # nearly always
            return []
        place = sources.admit_side_file(file_path, instance.get_dir(), Kind.SOURCE)
        return [] if place is None else wrapped(place)

    return read(*args, **kwargs)


@verifier(
    "torch._inductor.compiler_bisector:CompilerBisector.write_lines_to_file(cls, file_path, lines)",  # to 2.12
    "cls, file_path, lines, *append=",
    why="Bisection state in the shared cache directory steers every process's compiles, and nothing marks who wrote "
    "it.",
    issue="https://github.com/pytorch/pytorch/issues/143453",
)
def write_lines_to_file(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """CompilerBisector.write_lines_to_file: attests the file before it exists, for the bisection's other processes."""

    def write(file_path: str, lines: list[str], **how: Any) -> None:
        before = instance.read_lines_from_file(file_path) if how.get("append") else []
        content = "".join([*before, *lines]).encode(locale.getpreferredencoding(False))
        gate.attest_file(CodeFile(file_path, instance.get_dir(), Kind.SOURCE), content)
        wrapped(file_path, lines, **how)

    write(*args, **kwargs)
