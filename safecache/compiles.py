"""What this thread compiles, or looks up before it would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Compile", "current", "scope"]


class Compile(threading.local):
    """The compile that a thread is in. ``graph``: what it is of, where torch has it at hand.

    ``config``: the AOTConfig of the lookup in AOTAutograd's cache, if the thread is in one; ``key_call``: the call that
    has computed its key, and what that returned; ``number``: how many such lookups Dynamo's compile, of this
    ``context``, had before. ``missing``: the kind of which all lookups are to miss. ``has_kernel``: it takes a kernel
    that was found, for which torch asks whether there are workers. ``kernel``: what triton.compile() has computed the
    key of, and not looked up yet; ``makes_kernel``: it is in a triton.compile(); ``is_told``: whether that one's lookup
    has been reported.
    """

    graph: Any = None
    config: Any = None
    key_call: Any = None
    context: Any = None
    number = -1
    missing: Any = None
    has_kernel = False
    kernel: Any = None
    makes_kernel = False
    is_told = False


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
