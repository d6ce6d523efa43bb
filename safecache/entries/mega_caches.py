"""Mega-caches: their artifacts are verified before torch writes them into the caches.

The container is that of torch/utils/_appending_byte_serializer.py and torch/compiler/_cache.py, the same in torch 2.11
to 2.15: a CRC-32, the version, and for each type its name, the number of its artifacts, and their cache keys and
contents. All numbers have eight bytes, and are the length of what follows or a number of artifacts.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from safecache.entries import artifacts, loading
from safecache.places.refs import Ref
from safecache.reporting import report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, seal, trust

__all__ = ["accept", "select_accepted"]

# Artifacts that torch unpickles later.
_SEALED = {
    "aot_autograd": Kind.AOT_ENTRY,
    "inductor": Kind.FX_ENTRY,
    "precompile": Kind.DYNAMO_PACKAGE,
    "pgo": Kind.PGO_STATE,
}
# Artifacts that it reads by itself, of which only the names can do harm.
_AUTOTUNING = "autotune"
_ORIGIN = "in the artifact"
_REMEDY = "Recompiling it."
_CHECKSUM_SIZE, _VERSION = 4, 1
_NUMBER = struct.Struct(">Q")
# The types and the artifacts of all of them, one per graph and kernel: some thousands in the largest mega-caches.
_MOST_ARTIFACTS = 1 << 18


class _NotWholeError(Exception):
    """Error: the container ends before what it claims to hold, or holds more than any real one. See its text."""


class _Walk:
    """Walks a container by its numbers alone. Raises _NotWholeError past its end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, _CHECKSUM_SIZE
        self._found = 0

    def read_number(self) -> int:
        start = self._skip(_NUMBER.size)
        return int(_NUMBER.unpack_from(self._content, start)[0])

    def walk_types(self) -> None:
        while self._at < len(self._content):
            self._count()
            self._skip(self.read_number())
            for _ in range(self.read_number()):
                self._count()
                self._skip(self.read_number())
                self._skip(self.read_number())

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
    """Tell whether torch may parse the mega-cache; report one that claims more artifacts than it can hold.

    Torch would create every claimed one. It detects other faults, and versions unknown to us, by itself. Raises the
    reason's error in strict mode.
    """
    walk = _Walk(container)
    try:
        if len(container) > _CHECKSUM_SIZE and walk.read_number() == _VERSION:
            walk.walk_types()
    except _NotWholeError as error:
        refusal = Refusal(Reason.DAMAGED, str(error), "Help: find out where it came from")
        report.refuse(refusal, Kind.OTHER, "for mega-caches")
        return False
    return True


def select_accepted(found: dict[str, list[Any]], written_under: Callable[[Any], str]) -> dict[str, list[Any]]:
    """Return the artifacts, by type, that may be written; report the others. Strict mode raises their error.

    ``written_under``: returns the cache key under which torch writes an artifact, for which it is then sealed.
    """
    return {name: list(_iter_accepted(name, each, written_under)) for name, each in found.items()}


def _iter_accepted(name: str, found: Iterable[Any], written_under: Callable[[Any], str]) -> Iterator[Any]:
    for artifact in found:
        if _accept_artifact(name, artifact):
            key = written_under(artifact) if name in _SEALED else artifact.key
            yield artifact if key == artifact.key else _reseal_artifact(artifact, _SEALED[name], key)


def _reseal_artifact(artifact: Any, kind: Kind, key: str) -> Any:
    """An admitted artifact with a seal for this cache key: the only one under which its reader will look for it.

    Without a signing key only this process will take it.
    """
    origin = artifacts.read_sealed_provenance(kind, artifact.key, artifact.content)
    payload, namespace = seal.strip_unverified(artifact.content), config.current().namespace
    content = seal.attach(payload, kind, key, keyring.current().attesting, origin, namespace)
    return dataclasses.replace(artifact, content=content)


def _accept_artifact(name: str, artifact: Any) -> bool:
    key: str = artifact.key
    kind = _SEALED.get(name)
    if kind is None:
        if name == _AUTOTUNING:
            return artifacts.accept_name(Kind.AUTOTUNING, key, _ORIGIN, safe=_is_autotuning_key(key))
        evidence = f"it is of the type {name[:64]!r}, which this version of safecache cannot verify"
        refusal, where = Refusal(Reason.UNKNOWN_FORMAT, evidence), f"{key[:64]!r} {_ORIGIN}"
        if trust.is_observed(refusal, Kind.OTHER, where):
            return True
        report.refuse(refusal, Kind.OTHER, where, _REMEDY)
        return False
    # A profile's cache key is a job's name, from which torch makes a plain file name by itself.
    safe = artifacts.is_plain(key) or (kind is Kind.PGO_STATE and "\0" not in key)
    if not artifacts.accept_name(kind, key, _ORIGIN, safe=safe):
        return False
    return loading.accept_or_quarantine(Ref(kind, key), artifact.content, origin=_ORIGIN)


def _is_autotuning_key(key: str) -> bool:
    folder, _, name = key.partition("/")
    return artifacts.is_plain(folder) and artifacts.is_autotuning_name(name)
