"""torch._inductor.cpp_builder: how Inductor runs the C++ compiler."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from safecache import build_failure, temporary_place

__all__ = ["cpp_compiler_search", "run_compile_cmd"]

_PURPOSE = "Inductor compiles its CPU kernels and their launchers with it"


def cpp_compiler_search(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """cpp_compiler_search: every error it has of its own is that there is no compiler."""
    return build_failure.explain(wrapped, args, kwargs, _PURPOSE, language="C++")


def run_compile_cmd(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """run_compile_cmd: says what to install where Python's headers are missing; goes on where TMPDIR is full."""

    def run(cmd_line: str, *rest: Any, **named: Any) -> Any:
        try:
            return wrapped(cmd_line, *rest, **named)
        except Exception:
            place = temporary_place.instead()
            if place is None:
                raise
        return wrapped(f"env TMPDIR={shlex.quote(place)} {cmd_line}", *rest, **named)

    return build_failure.explain(run, args, kwargs, _PURPOSE, language="C++")
