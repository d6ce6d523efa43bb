"""Digests, by path, of the code that this process vouches for, since it has generated, built or verified it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping

from safecache.fs import filesystem
from safecache.session import Part, inherit

__all__ = [
    "add_verified",
    "attest_in_process",
    "export_known",
    "import_known",
    "is_expected",
    "is_known",
    "verified_digest",
]

# Seconds for which a verdict on a file holds while its stat is unchanged: from asking whether to build it until loading
# it. Later the file is read again, since what a disk returns may change without the kernel's doing.
_FRESH = 10.0


class _State:
    def __init__(self) -> None:
        # SHA-256 digests by path.
        self.known: dict[str, set[bytes]] = {}
        # The stat of each verified file, its digest, and when it was verified, on the monotonic clock.
        self.verified: dict[str, tuple[list[int], bytes, float]] = {}


_state: Part[_State] = Part(_State, inherit)


def attest_in_process(path: str, content: bytes = b"", *, digest: bytes | None = None) -> None:
    """Attest ``content``, or content with this SHA-256 ``digest``, at ``path``, for this process only."""
    _state.now.known.setdefault(path, set()).add(digest or hashlib.sha256(content).digest())


def is_known(path: str, content: bytes = b"", *, digest: bytes | None = None) -> bool:
    """Tell whether this process has attested ``content``, or content with this SHA-256 ``digest``, at ``path``."""
    return (digest or hashlib.sha256(content).digest()) in _state.now.known.get(path, ())


def is_expected(path: str) -> bool:
    """Tell whether this process has attested any content at ``path``."""
    return path in _state.now.known


def export_known(paths: Iterable[str]) -> dict[str, frozenset[bytes]]:
    """Return the SHA-256 digests, by path, that this process has attested, for another's import_known()."""
    known = _state.now.known
    return {path: frozenset(known[path]) for path in paths if path in known}


def import_known(digests: Mapping[str, frozenset[bytes]]) -> None:
    """Attest the SHA-256 ``digests``, by path, that the parent process has sent through its own pipe."""
    for path, known in digests.items():
        _state.now.known.setdefault(path, set()).update(known)


def add_verified(path: str, status: os.stat_result, digest: bytes) -> None:
    """Attest content with this SHA-256 ``digest`` at ``path``, and remember that the file had it at this ``status``."""
    attest_in_process(path, digest=digest)
    _state.now.verified[path] = filesystem.get_identity(status), digest, time.monotonic()


def verified_digest(path: str, status: os.stat_result) -> bytes | None:
    """Return the SHA-256 of a file that was verified at this ``status`` in the last 10 s; None if it must be read."""
    identity, digest, moment = _state.now.verified.get(path, ([], b"", 0.0))
    return digest if identity == filesystem.get_identity(status) and time.monotonic() - moment < _FRESH else None
