"""What a graph is called, whatever its key: the function that Dynamo compiles, and which graph of it.

Asked at a miss only: it walks the stack, as torch tells nobody the function's code object at that point. The frame is
that of ``_compile`` in torch/_dynamo/convert_frame.py; a graph that is compiled later, such as a backward one, is told
by the id that track_graph_compiling() of torch/_functorch/_aot_autograd/logging_utils.py has. The same in torch 2.11 to
2.15.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

from safecache import compiles
from safecache.session import Part, inherit

__all__ = [
    "BACKWARD",
    "frame",
    "lookup",
    "of_current",
    "of_graph",
    "of_kernel",
    "of_lookup",
]

# How the name of a backward graph ends.
BACKWARD = " backward"

_COMPILE = ("torch._dynamo.convert_frame", "_compile")
_WRAPPER = "torch._dynamo.external_utils"
# Their frames are on the way to whoever has called torch.
_ON_THE_WAY = re.compile(r"(torch|safecache|wrapt|contextlib|functools|unittest\.mock)(\..*)?")
_BEING_COMPILED = re.compile(r"(\d+)_\w+")
# Inductor names the modules that it generates after a hash of their content.
_GENERATED = re.compile(r"c[a-z2-7]{51}")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")

# By AOTAutograd's ids for graphs, of this process.
_names: Part[dict[int, str]] = Part(dict, inherit)


def frame() -> str:
    """Dynamo's id of the compile that this thread is in, such as "0/1": the function's, and which of its compiles."""
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    found = None if context is None else context.current_compile_id()
    return "" if found is None else str(found)


@contextmanager
def lookup(config: Any) -> Iterator[None]:
    """In this block a graph with this AOTConfig is looked up in AOTAutograd's cache."""
    guards = sys.modules.get("torch._guards")
    context = guards.CompileContext.try_get() if guards is not None else None
    current = compiles.current
    # Compared by identity, not by its id, which starts again at torch._dynamo.reset().
    is_same = context is not None and current.context is not None and current.context() is context
    current.number = current.number + 1 if is_same else 0
    current.context = weakref.ref(context) if context is not None else None
    with compiles.scope(config=config, key_call=None):
        yield


def of_lookup() -> str:
    """The name of the graph being looked up in AOTAutograd's cache."""
    number = compiles.current.number
    name = of_current() + (f" graph {number}" if number else "")
    _names.now[compiles.current.config.aot_id] = name
    return name


def of_graph(*, is_backward: bool) -> str:
    """The name of the graph that Inductor compiles, or looks up: that of AOTAutograd's graph, and which half of it."""
    half = "backward" if is_backward else "forward"
    if compiles.current.config is not None:
        return f"{of_lookup()} {half}"
    logged = sys.modules.get("torch._functorch._aot_autograd.logging_utils")
    for each in logged.graph_being_compiled if logged is not None else ():
        found = _BEING_COMPILED.fullmatch(each)
        if found is not None and int(found[1]) in _names.now:
            return f"{_names.now[int(found[1])]} {half}"
    return f"{of_current()} {half}"


def of_current() -> str:
    """The name of the function that this thread compiles, or, where it does not, of the one that has called torch."""
    frame: FrameType | None = sys._getframe(1)
    caller: FrameType | None = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if (module, frame.f_code.co_name) == _COMPILE:
            return _compiled(frame.f_locals)
        if caller is None and not _ON_THE_WAY.fullmatch(module):
            caller = frame
        frame = frame.f_back
    return _qualified(caller.f_code, caller.f_globals) if caller is not None else "a graph"


def _compiled(given: Mapping[str, Any]) -> str:
    """By what _compile() was given: what torch skips, such as a function without a file, is within a wrapper."""
    if given["globals"].get("__name__") == _WRAPPER:
        for cell in given["closure"] or ():
            method = cell.cell_contents
            function = getattr(method, "__func__", method)
            if isinstance(function, FunctionType):
                return _qualified(function.__code__, function.__globals__)
    return _qualified(given["code"], given["globals"])


def _qualified(code: CodeType, scope: Mapping[str, Any]) -> str:
    # A program is called __main__ wherever it runs, and may be another one each time.
    module = str(scope.get("__name__"))
    if module == "__main__":
        module = os.path.splitext(os.path.basename(code.co_filename))[0]
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    resumed = _RESUMED.sub(r"\1 (resumed)", name)
    return f"{module}.{resumed}"


def of_kernel(source: Any) -> str:
    """The kernel's name, which depends neither on where it is compiled nor on its specialization."""
    kernel = getattr(source, "fn", None)
    if kernel is None:
        return str(source.name)
    module = str(getattr(kernel, "__module__", ""))
    name = getattr(kernel, "__qualname__", source.name)
    generated = _GENERATED.fullmatch(module.rpartition(".")[2]) or module.startswith("torch._inductor")
    return f"inductor.{name}" if generated else f"{module}.{name}"
