"""Configurations of kernels that have crashed the compiler, remembered by Triton's cache hash and skipped next time.

The hash covers the source, the options, the build of Triton and ptxas: any other of them is tried anew. A note is
sealed, or who can write to the cache could keep any kernel from being compiled.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from safecache.entries import loading
from safecache.files import folders
from safecache.isolation.crash import Crash
from safecache.places import layout, ours
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config, timestamps
from safecache.signing import binding, keyring, seal, trust
from safecache.signing.trust import Refusal
from safecache.store import entry_files

__all__ = ["Note", "find", "forget", "hashes", "listed", "remember", "reset"]

_HASH = re.compile(r"[0-9a-f]{64}")
_DAY = 86400.0
# Seconds. Whoever repairs a driver or a container without a change of the hash gets another try.
_LASTS, _LIMIT_LASTS = 30 * _DAY, _DAY
_REMEDY = "The kernel is compiled again."

# What this process knows, by root and hash: a cache that cannot be written would have it wait for a timeout each time.
_known: dict[tuple[str, str], Note] = {}


class Note(NamedTuple):
    """A crash, and what was said of it; ``moment``: when, in seconds since the epoch."""

    crash: Crash
    kernel: str
    config: dict[str, Any]
    report: str | None
    moment: float

    def holds(self, timeout: float, memory: int, now: float) -> bool:
        """Whether it says that a compile within these limits would crash too."""
        if now - self.moment > (_LIMIT_LASTS if self.crash.is_of_limit else _LASTS):
            return False
        return {"timeout": timeout, "memory": memory}.get(self.crash.how, 0) <= self.crash.number


def remember(root: str, hash: str, note: Note) -> None:
    """Have this process, and all that trust its key, skip the compile of this hash. What cannot be written is reported.

    A crash that somebody else brought about is not remembered.
    """
    if note.crash.is_by_others:
        return
    _known[root, hash] = note
    key = keyring.current().signing
    if key is None:
        return
    stated = json.dumps(note._asdict() | {"crash": note.crash._asdict()}).encode()
    namespace = config.current().namespace
    sealed = seal.attach(stated, Kind.KNOWN_BAD, hash, key, binding.statement(Kind.KNOWN_BAD), namespace)
    try:
        entry_files.publish(_path(root, hash), sealed, root)
    except OSError as error:
        text = f"the note of a crash {_path(root, hash)} was not written: {error.strerror}."
        remedy = "Only this process skips the configuration. Let TRITON_CACHE_DIR name a directory that can be written."
        events.report(Reason.UNWRITABLE, text, cause=f"{error.errno} {root}", remedy=remedy, error=error)


def find(root: str, hash: str, *, timeout: float, memory: int) -> Note | None:
    """The note of this hash, if there is one that holds for these limits. One that is refused is reported."""
    note = _known.get((root, hash)) or _read(root, hash)
    if note is None or not note.holds(timeout, memory, time.time()):
        return None
    _known[root, hash] = note
    return note


def forget(root: str, hash: str) -> bool:
    """Have it compiled again; whether there was a note. Raises OSError."""
    known = _known.pop((root, hash), None) is not None
    try:
        with folders.above(root, _path(root, hash)) as (folder, name):
            folder.unlink(name)
    except FileNotFoundError:
        return known
    return True


def hashes(root: str) -> list[str]:
    """Those with a note in the cache, whatever it says. Raises OSError."""
    return [name for name in layout.list_entries(os.path.dirname(_path(root, ""))) if _HASH.fullmatch(name)]


def listed(root: str) -> Iterator[tuple[str, Note]]:
    """The hashes and notes that hold, at the limits of then. Those that are refused are reported. Raises OSError."""
    for hash in hashes(root):
        note = _read(root, hash)
        if note is not None and note.holds(note.crash.number, note.crash.number, time.time()):
            yield hash, note


def _path(root: str, hash: str) -> str:
    return ours.path(root, ours.KNOWN_BAD, hash)


def _read(root: str, hash: str) -> Note | None:
    path = _path(root, hash)
    content = loading.read(Kind.KNOWN_BAD, path)
    if content is None:
        return None
    verdict = seal.verify(content, Kind.KNOWN_BAD, hash, keyring.current().find, config.current().namespace)
    refusal = _refusal(verdict)
    if refusal is not None:
        loading.note(refusal.reason, Kind.KNOWN_BAD, path, refusal.evidence, _REMEDY)
        return None
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        return _decoded(json.loads(seal.payload_of(content)))
    loading.note(Reason.UNKNOWN_FORMAT, Kind.KNOWN_BAD, path, "this version does not know its format", _REMEDY)
    return None


def _decoded(stated: Any) -> Note:
    """Raises ValueError, TypeError and KeyError for what this version does not write, whoever has sealed it."""
    note = Note(**stated | {"crash": Crash(**stated["crash"])})
    texts = (note.crash.how, note.crash.stage, note.kernel, note.report or "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(note.config, dict):
        raise TypeError("a field of the note has another type")
    timestamps.checked(note.moment)
    if type(note.crash.number) is not int:
        raise TypeError("the number of a crash is none")
    return note


def _refusal(verdict: seal.Verdict) -> Refusal | None:
    if verdict.reason is None:
        return trust.foreign(verdict, Kind.KNOWN_BAD)
    by_nobody = "it is not sealed by a key that this process trusts"
    return Refusal(verdict.reason, by_nobody if verdict.reason in trust.UNATTESTED else trust.evidence(verdict))


def reset() -> None:
    """Forget which notes were read."""
    _known.clear()
