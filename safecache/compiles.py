"""What this thread compiles, or looks up before it would."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from safecache.session import Part

__all__ = ["Compile", "current", "scope"]


class Compile(threading.local):
    """The compile, lookup, load or save that a thread is in. What is of another room is Any here."""

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
    # Of an artifact that is loaded: where its bytes come from; what differs if it is compiled anew, None where none is;
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
    # Of Triton: what it has computed the key of, and not looked up yet; whether it is in triton.compile(); the
    # code.triton_files.KernelWrite; whether what it hands to its remote cache was made here.
    kernel: Any = None
    makes_kernel = False
    kernel_write: Any = None
    is_sending = False
    # Of what is built: who decides on torch's locks; the lock of an extension's directory, and whether only its plan is
    # wanted; the source that was written last; the code.library_builds.Build.
    lock_guard: Any = None
    extension_lock: Any = None
    is_planning = False
    written = ""
    build: Any = None
    # Of features: the flights that it compiles in, and whether it may wait there; the trial;
    # a tuning whose configurations are shared out; the tunings of isolation, the one whose turn it is, whether a kernel
    # is only asked for; a server's model; the lines of a key, where they
    # are wanted.
    flights: tuple[Any, ...] = ()
    waits = True
    trial: Any = None
    shared_tuning: Any = None
    tunings: Any = None
    kernel_tuning: Any = None
    asks_kernel = False
    served: Mapping[str, str] = MappingProxyType({})
    key_lines: list[str] | None = None


current = Compile()


def _in_child(_: None) -> None:
    current.flights, current.trial, current.waits = (), None, True


# A forked child has not its parent's leases, nor its marker.
_parents = Part(lambda: None, _in_child)


@contextmanager
def scope(**values: Any) -> Iterator[None]:
    """In this block the thread's Compile has these values."""
    outer = {name: getattr(current, name) for name in values}
    vars(current).update(values)
    try:
        yield
    finally:
        vars(current).update(outer)
