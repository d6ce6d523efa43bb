"""torch._inductor.cpp_builder: how Inductor runs the C++ compiler."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

from safecache.entries import loading
from safecache.files import ownership
from safecache.loads import failures
from safecache.reporting.kinds import Kind, Reason
from safecache.tiers import directory_faults

__all__ = ["cpp_compiler_search", "install_gcc_via_conda", "run_compile_cmd"]

_PURPOSE = "Inductor compiles its CPU kernels and their launchers with it"

# Where this process has had conda install a compiler.
_installed: set[str] = set()


def cpp_compiler_search(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """cpp_compiler_search: every error it has of its own is that there is no compiler."""
    return failures.explain_build(wrapped, args, kwargs, _PURPOSE, language="C++")


def install_gcc_via_conda(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """install_gcc_via_conda: a compiler that lies in the cache is not run, unless it was just installed there.

    It is thousands of files, which nobody can attest. Raises FileNotFoundError: torch takes the next compiler then.
    """
    prefix = os.path.join(sys.modules["torch._inductor.cpp_builder"].cache_dir(), "gcc")
    objection = _objection(prefix)
    if objection is not None:
        compiler = os.path.join(prefix, "bin", "g++")
        remedy = f"The next compiler is taken; if you trust this one, name it yourself: export CXX={compiler}"
        loading.note(Reason.UNSEALED, Kind.NATIVE_CODE, compiler, objection, remedy)
        raise FileNotFoundError(compiler)
    result = wrapped(*args, **kwargs)
    _installed.add(prefix)
    return result


def _objection(prefix: str) -> str | None:
    if prefix in _installed:
        return None
    if os.path.lexists(prefix):
        return "this process has not installed it, and nothing attests a whole compiler in a cache"
    others = ownership.why_not_private(os.path.dirname(prefix))
    return None if others is None else f"others could write to it: {others}"


def run_compile_cmd(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """run_compile_cmd: says what to install where Python's headers are missing; goes on where TMPDIR is full."""

    def run(cmd_line: str, *rest: Any, **named: Any) -> Any:
        try:
            return wrapped(cmd_line, *rest, **named)
        except Exception:
            place = directory_faults.instead()
            if place is None:
                raise
        return wrapped(f"env TMPDIR={shlex.quote(place)} {cmd_line}", *rest, **named)

    return failures.explain_build(run, args, kwargs, _PURPOSE, language="C++")
