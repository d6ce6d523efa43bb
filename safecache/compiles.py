"""What this thread compiles, or looks up before it would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Compile", "current", "scope"]


class Compile(threading.local):
    """The compile, lookup, load or save that a thread is in. What is of another room is Any here."""

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
    # Of Triton: what it has computed the key of, and not looked up yet; whether it is in triton.compile(), and whether
    # that lookup was reported; where the lists will be of what it compiles, and the digests of files, by path, that no
    # record attests until then; whether what it hands to its remote cache was made here.
    kernel: Any = None
    makes_kernel = False
    is_told = False
    awaited: set[str] | None = None
    owed: dict[str, bytes] = {}  # noqa: RUF012  replaced where it is added to
    is_sending = False
    # Of what is built: who decides on torch's locks; the lock of an extension's directory, and whether only its plan is
    # wanted; the source that was written last; whether libraries are verified, which no tier has, the source of the one
    # that is looked for, and the error of the last one.
    lock_guard: Any = None
    extension_lock: Any = None
    is_planning = False
    written = ""
    is_guarded = False
    absent: set[str] = set()  # noqa: RUF012  replaced where it is added to
    source = ""
    build_error: Exception | None = None


current = Compile()


@contextmanager
def scope(**values: Any) -> Iterator[None]:
    """In this block the thread's Compile has these values."""
    outer = {name: getattr(current, name) for name in values}
    vars(current).update(values)
    try:
        yield
    finally:
        vars(current).update(outer)
