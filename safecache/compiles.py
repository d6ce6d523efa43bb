"""State of the compile or lookup that each thread is in, and names of graphs and kernels that do not depend on keys.

A graph's name is the function that Dynamo compiles, with the number of the graph in it. Names are computed at a miss
only, by a walk up the stack, since torch passes the code object to nobody there. The frame is that of ``_compile`` in
torch/_dynamo/convert_frame.py. A graph that is compiled later, such as a backward one, is found by the id that
track_graph_compiling() of torch/_functorch/_aot_autograd/logging_utils.py has. The same in torch 2.11 to 2.15.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any

from safecache.session import Part, inherit

__all__ = [
    "BACKWARD",
    "Compile",
    "current",
    "find_frame",
    "graph_lookup_scope",
    "name_current",
    "name_graph",
    "name_kernel",
    "name_lookup",
    "override_scope",
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


class Compile(threading.local):
    """State of the compile, lookup, load or save that a thread is in. Types of other packages are Any here."""

    # How many events.propagate_strict() blocks it is in, what strict mode has raised in them, what was refused in them,
    # and how much of that before the innermost.
    reading = 0
    strict_error: Any = None
    refusals: list[str] = []  # noqa: RUF012  replaced before it is added to
    refused_before = 0
    # The graph, where torch has it at hand; the entries.searches.Search, and whether it is only a look ahead.
    graph: Any = None
    search: Any = None
    only_looks = False
    # The kind of which all lookups are to miss.
    missing: Any = None
    # Of a lookup in AOTAutograd's cache its AOTConfig, the call that has computed its key with its result, and how many
    # of them Dynamo's compile, of this context, had before.
    config: Any = None
    key_call: Any = None
    context: Any = None
    number = -1
    # The entries.saving attempt, and why the compile that this thread was in last has saved no entry.
    save: Any = None
    save_failure = ""
    # Of an artifact that is loaded: where its bytes come from; what differs if it is recompiled, None where none is;
    # whether no guards are evaluated for it; the kind and bytes that alone are unpickled next; whether vLLM compiles if
    # there is none.
    origin = ""
    which: str | None = None
    is_unguarded = False
    pinned: tuple[Any, bytes] | None = None
    can_compile = False
    # The archive that is read with restrictions, and the package that was verified.
    archive: str | None = None
    package = ""
    # Whether a kernel is taken that was found, for which torch asks whether there are workers.
    has_kernel = False
    # Of Triton: what it has computed the key of, and not looked up yet; whether it is in triton.compile(), and whether
    # that lookup was reported; the code.triton_files.KernelWrite; whether what it hands to its remote cache was made
    # here.
    kernel: Any = None
    makes_kernel = False
    is_told = False
    kernel_write: Any = None
    is_sending = False
    # Of what is built: who decides on torch's locks; the lock of an extension's directory, and whether only its plan is
    # wanted; the source that was written last; the code.library_builds.Build.
    lock_guard: Any = None
    extension_lock: Any = None
    is_planning = False
    written = ""
    build: Any = None
    # Of features: the flights that it compiles in, and whether it may wait there; the trial; a tuning whose
    # configurations are shared out; the tunings of isolation, the one whose turn it is, whether a kernel is only asked
    # for, and what was made for this triton.compile() before it began; a server's model; the lines of a key, where they
    # are wanted.
    flights: tuple[Any, ...] = ()
    waits = True
    trial: Any = None
    shared_tuning: Any = None
    tunings: Any = None
    kernel_tuning: Any = None
    asks_kernel = False
    made: Any = None
    served: Mapping[str, str] = MappingProxyType({})
    key_lines: list[str] | None = None


current = Compile()


def _renew_in_child(_: None) -> None:
    current.flights, current.trial, current.waits = (), None, True


# A forked child has not its parent's leases, nor its marker.
_parents = Part(lambda: None, _renew_in_child)


@contextmanager
def override_scope(**values: Any) -> Iterator[None]:
    """Set these attributes of this thread's ``current`` for the block, and restore them after it.

    ``values``: names are those of Compile's attributes. Raises AttributeError for another name.
    """
    outer = {name: getattr(current, name) for name in values}
    vars(current).update(values)
    try:
        yield
    finally:
        vars(current).update(outer)


def find_frame() -> str:
    """Return Dynamo's id of this thread's compile, such as "0/1": the function, and which of its compiles; else ""."""
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    found = None if context is None else context.current_compile_id()
    return "" if found is None else str(found)


@contextmanager
def graph_lookup_scope(config: Any) -> Iterator[None]:
    """Number the graph that torch looks up in AOTAutograd's cache in this block, and keep ``config`` for name_lookup().

    ``config``: torch's AOTConfig. Graphs are numbered from 0 within one compile of Dynamo.
    """
    guards = sys.modules.get("torch._guards")
    context = guards.CompileContext.try_get() if guards is not None else None
    # Compared by identity, not by its id, which starts again at torch._dynamo.reset().
    known = current.context
    is_same = context is not None and known is not None and known() is context
    current.number = current.number + 1 if is_same else 0
    current.context = weakref.ref(context) if context is not None else None
    with override_scope(config=config, key_call=None):
        yield


def name_lookup() -> str:
    """Return the name of the graph that is looked up in AOTAutograd's cache, and keep it for name_graph().

    Needs graph_lookup() around it.
    """
    number = current.number
    name = name_current() + (f" graph {number}" if number else "")
    _names.now[current.config.aot_id] = name
    return name


def name_graph(*, is_backward: bool) -> str:
    """Return the name of the graph that Inductor looks up or compiles: AOTAutograd's name and "forward" or "backward".

    ``is_backward``: which of the two halves it is.
    """
    half = "backward" if is_backward else "forward"
    if current.config is not None:
        return f"{name_lookup()} {half}"
    logged = sys.modules.get("torch._functorch._aot_autograd.logging_utils")
    for each in logged.graph_being_compiled if logged is not None else ():
        found = _BEING_COMPILED.fullmatch(each)
        if found is not None and int(found[1]) in _names.now:
            return f"{_names.now[int(found[1])]} {half}"
    return f"{name_current()} {half}"


def name_current() -> str:
    """Return the qualified name of the function that this thread compiles; else of the code that called torch.

    Returns "a graph" if the stack shows neither.
    """
    find_frame: FrameType | None = sys._getframe(1)
    caller: FrameType | None = None
    while find_frame is not None:
        module = str(find_frame.f_globals.get("__name__"))
        if (module, find_frame.f_code.co_name) == _COMPILE:
            return _name_function(find_frame.f_locals)
        if caller is None and not _ON_THE_WAY.fullmatch(module):
            caller = find_frame
        find_frame = find_frame.f_back
    return _qualify_name(caller.f_code, caller.f_globals) if caller is not None else "a graph"


def _name_function(given: Mapping[str, Any]) -> str:
    """Return the name of the function that torch's _compile() was ``given``, which may be within a wrapper of torch."""
    if given["globals"].get("__name__") == _WRAPPER:
        for cell in given["closure"] or ():
            method = cell.cell_contents
            function = getattr(method, "__func__", method)
            if isinstance(function, FunctionType):
                return _qualify_name(function.__code__, function.__globals__)
    return _qualify_name(given["code"], given["globals"])


def _qualify_name(code: CodeType, scope: Mapping[str, Any]) -> str:
    # A program is called __main__ wherever it runs, and may be another one each time.
    module = str(scope.get("__name__"))
    if module == "__main__":
        module = os.path.splitext(os.path.basename(code.co_filename))[0]
    name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    resumed = _RESUMED.sub(r"\1 (resumed)", name)
    return f"{module}.{resumed}"


def name_kernel(source: Any) -> str:
    """Return a name of the kernel that depends neither on its directory nor on its specialization.

    ``source``: what triton.compile() was given, such as an ASTSource.
    """
    kernel = getattr(source, "fn", None)
    if kernel is None:
        return str(source.name)
    module = str(getattr(kernel, "__module__", ""))
    name = getattr(kernel, "__qualname__", source.name)
    generated = _GENERATED.fullmatch(module.rpartition(".")[2]) or module.startswith("torch._inductor")
    return f"inductor.{name}" if generated else f"{module}.{name}"
