"""The file-system calls of the store, noted and made to fail: all of safecache.fs.filesystem that the kernel answers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from safecache.fs import filesystem

ERRORS = ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE", "ESTALE", "EBUSY", "EACCES", "EINTR", "ENOMEM"]
_OWN = {"GONE", "LISTED", "NOWHERE", "PASSING", "realpath", "READING", "identity", "retry", "sleep", "write_all"}
NAMES = [name for name in filesystem.__all__ if name not in _OWN]


class Call(NamedTuple):
    """One that returned."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class Plan(NamedTuple):
    """Have the call ``number`` fail; and ``every`` later one of its name, if so."""

    number: int
    error: int
    every: bool = False


class Calls:
    """What is called, in order, and what is planned to fail. ``seen`` is told each that returns."""

    def __init__(self, monkeypatch) -> None:
        self.seen: Callable[[Call], None] = lambda call: None
        self.clear()
        for name in NAMES:
            monkeypatch.setattr(filesystem, name, self._wrapped(name, getattr(filesystem, name)))

    def clear(self, plan: Plan | None = None) -> None:
        self.plan = plan
        self.names: list[str] = []
        self.done: list[str] = []

    @property
    def failed(self) -> str:
        """The name of the call that was planned to."""
        return self.names[self.plan.number] if self.plan.number < len(self.names) else ""

    def _fails(self, name: str) -> bool:
        if self.plan is None:
            return False
        number = len(self.names) - 1
        later = self.plan.every and number > self.plan.number and name == self.names[self.plan.number]
        return number == self.plan.number or later

    def _wrapped(self, name, real):
        def call(*args, **kwargs):
            self.names.append(name)
            if self._fails(name):
                if name == "close":
                    real(*args)  # the descriptor is free all the same: close(2)
                raise OSError(self.plan.error, os.strerror(self.plan.error))
            result = real(*args, **kwargs)
            self.done.append(name)
            self.seen(Call(name, args, kwargs, result))
            return result

        return call


def plans(calls: Calls, action: Callable[[], object], error: str):
    """Every way in which one call of ``action``, which is done once for this, can fail with this error."""
    calls.clear()
    action()
    total = len(calls.names)
    assert total
    for every in (False, True):
        for number in range(total):
            yield Plan(number, getattr(errno, error), every)


def descriptors() -> list[str]:
    """What this process has open."""
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd))


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")
