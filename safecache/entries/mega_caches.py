"""What arrives in a mega-cache artifact is verified before torch writes it into the caches.

The container is that of torch/utils/_appending_byte_serializer.py and torch/compiler/_cache.py, the same in torch 2.11
to 2.15: a CRC-32, the version, and for each type its name, the number of its artifacts, and their keys and contents.
All numbers have eight bytes, and are the length of what follows them, or a number of artifacts.
"""

from __future__ import annotations

import struct
from typing import Any

from safecache.entries import artifacts, loading
from safecache.reporting.kinds import Kind, Reason

__all__ = ["accept", "admitted"]

# What torch unpickles later.
_SEALED = {
    "aot_autograd": Kind.AOT_ENTRY,
    "inductor": Kind.FX_ENTRY,
    "precompile": Kind.DYNAMO_PACKAGE,
    "pgo": Kind.PGO_STATE,
}
# What it reads by itself, where only the names can hurt.
_AUTOTUNING = "autotune"
_ORIGIN = "in the artifact"
_REMEDY = "What it is for is compiled anew."
_CHECKSUM_SIZE, _VERSION = 4, 1
_NUMBER = struct.Struct(">Q")
# Of all types, and the types themselves. One for each graph and kernel: some thousands in the largest.
_MOST_ARTIFACTS = 1 << 18


class _NotWholeError(Exception):
    """The container ends before what it says that it holds, or holds more than any does. The text says which."""


class _Walk:
    """Goes through a container by its numbers alone. What is beyond its end raises _NotWholeError."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, _CHECKSUM_SIZE
        self._found = 0

    def number(self) -> int:
        start = self._skip(_NUMBER.size)
        return int(_NUMBER.unpack_from(self._content, start)[0])

    def each_type(self) -> None:
        while self._at < len(self._content):
            self._count()
            self._skip(self.number())
            for _ in range(self.number()):
                self._count()
                self._skip(self.number())
                self._skip(self.number())

    def _count(self) -> None:
        self._found += 1
        if self._found > _MOST_ARTIFACTS:
            raise _NotWholeError(f"it holds more than {_MOST_ARTIFACTS} artifacts")

    def _skip(self, size: int) -> int:
        start = self._at
        self._at += size
        if self._at > len(self._content):
            raise _NotWholeError("it claims to hold more than there is in it")
        return start


def accept(container: bytes) -> bool:
    """Whether torch may parse it: it would make as many artifacts as are claimed, from nothing. If not, it is reported.

    What else is wrong with it torch finds by itself, and says; so it does of a version that we do not know.
    """
    walk = _Walk(container)
    try:
        if len(container) > _CHECKSUM_SIZE and walk.number() == _VERSION:
            walk.each_type()
    except _NotWholeError as error:
        loading.note(Reason.DAMAGED, Kind.OTHER, "for mega-caches", str(error), "Find out where it came from.")
        return False
    return True


def admitted(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Of the artifacts of each type those that may be written; the others are reported."""
    return {name: [artifact for artifact in each if _admit(name, artifact)] for name, each in found.items()}


def _admit(name: str, artifact: Any) -> bool:
    key: str = artifact.key
    kind = _SEALED.get(name)
    if kind is None:
        if name == _AUTOTUNING:
            return artifacts.accept_name(Kind.AUTOTUNING, key, _ORIGIN, safe=_is_autotuning_key(key))
        evidence = f"it is of the type {name[:64]!r}, which this version of safecache cannot verify"
        loading.note(Reason.UNKNOWN_FORMAT, Kind.OTHER, f"{key[:64]!r} {_ORIGIN}", evidence, _REMEDY)
        return False
    # The key of a profile is a job's name, of which torch makes a plain file name by itself.
    safe = artifacts.is_plain(key) or (kind is Kind.PGO_STATE and "\0" not in key)
    if not artifacts.accept_name(kind, key, _ORIGIN, safe=safe):
        return False
    return loading.admit(kind, key, artifact.content, origin=_ORIGIN)


def _is_autotuning_key(key: str) -> bool:
    folder, _, name = key.partition("/")
    return artifacts.is_plain(folder) and artifacts.is_autotuning_name(name)
