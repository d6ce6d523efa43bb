"""One cache key's directory in Triton's cache, or in a lower tier: files are verified before they are read.

The files of a kernel form a group, and the record of its list states the digest of each. So a reader gets all of one
writer's files or none, and the paths in the list, which hold only where it was written, do not matter. A compile, which
ends with the list, writes no other record.

Triton reads back by name what it has just written. A network file system can fail at that, though the file is
published, or somebody may have cleared the cache: the bytes then come from memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from safecache import compiles
from safecache.files import filesystem, opening, ownership
from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.signing import trust
from safecache.store import attestations, entry_files, gate, manifests, quarantine
from safecache.store.manifests import LIST
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unreadable

__all__ = [
    "LIST",
    "REMEDY",
    "Place",
    "digest",
    "forget_written",
    "is_plain",
    "is_written",
    "names_in",
    "note_aside",
    "private_copy_path",
    "read_by",
    "readable",
    "record_write",
]

_Result = TypeVar("_Result")


class _KernelWrite:
    """What a thread has written of a kernel, and not read back: SHA-256 digests by name, and bytes by path."""

    def __init__(self, directory: str = "") -> None:
        self.directory = directory
        self.digests: dict[str, str | None] = {}
        self.contents: dict[str, bytes] = {}
        self.is_private: bool | None = None


class _State:
    def __init__(self) -> None:
        # Where the file is that an entry brought for a path.
        self.aside: dict[str, str] = {}


_state: Part[_State] = Part(_State, inherit)


def record_write(directory: str, name: str, content: bytes, readable: str, digest: bytes | None) -> None:
    """Remember that ``content`` was written to ``name``, and can be read at ``readable``.

    ``digest``: its SHA-256, None if it is not in the cache.
    """
    written = _begin(directory)
    written.digests[name] = None if digest is None else digest.hex()
    if not name.endswith(".so"):  # Triton does not read that back with its group
        written.contents[readable] = content


def _begin(directory: str) -> _KernelWrite:
    if not is_written(directory):
        compiles.current.kernel_write = _KernelWrite(directory)
    return _written()


def _written() -> _KernelWrite:
    written: _KernelWrite | None = compiles.current.kernel_write
    return written or _KernelWrite()


def readable(path: str, content: bytes) -> str:
    """As gate.private_path(), of a file that this thread has just written: a kernel's directory is asked once."""
    directory = os.path.dirname(path)
    written = _begin(directory)
    if written.is_private is None:
        written.is_private = ownership.why_not_private(directory) is None
    with suppress(OSError):  # as if it were not private: somebody has cleared the cache
        if written.is_private and _is_own(filesystem.lstat(path)):
            return path
    return gate.private_path(CodeFile(path, kind=Kind.KERNEL), content)


def _is_own(status: os.stat_result) -> bool:
    """Whether nobody else could write to a file with this status, its directory aside."""
    return ownership.own_uid(status.st_uid) and not status.st_mode & 0o022


def digest(directory: str, name: str) -> tuple[bool, str | None]:
    """Whether this thread has written the file, and its SHA-256 in hex, None if it was not kept."""
    digests = _written().digests if is_written(directory) else {}
    return name in digests, digests.get(name)


def is_written(directory: str) -> bool:
    """Whether this thread has just written what lies in this directory, and has not read it back yet."""
    return directory == _written().directory


def forget_written() -> None:
    """Forget the files that this thread has written."""
    compiles.current.kernel_write = None


def note_aside(path: str, readable: str) -> None:
    """Remember where the file is that an entry brought for ``path``, if it is not there."""
    if readable != path:
        _state.now.aside[path] = readable


def private_copy_path(path: str) -> str | None:
    """The path of the private copy that is the file instead; None if there is none, or its directory was removed."""
    readable = _state.now.aside.get(path)
    return readable if readable is not None and os.path.exists(readable) else None


def read_by(construct: Callable[[Mapping[str, str]], _Result], group: Mapping[str, str]) -> _Result:
    """``construct(group)``, which reads the group's files; from private copies if one we wrote cannot be read again.

    Raises what ``construct`` does, such as OSError for a file of another writer.
    """
    contents = _written().contents
    forget_written()
    try:
        return filesystem.retry(lambda: construct(group), filesystem.GONE)
    except OSError as error:
        failed = None if error.filename is None else os.fspath(error.filename)
        if failed not in contents:
            raise
        text = f"kernel file {failed} could not be read again: {error.strerror}."
        remedy = "Its bytes are taken from memory."
        events.report(Reason.UNREADABLE, text, cause=f"{error.errno} read again", remedy=remedy, error=error)
    copies = {
        name: gate.private_path(CodeFile(path, kind=Kind.KERNEL), contents[path], is_kept=False)
        if path in contents
        else path
        for name, path in group.items()
    }
    return construct(copies)


REMEDY = "It is compiled anew; make it readable or remove it."


def names_in(content: bytes) -> list[str] | None:
    """The names in a list; None if it is malformed, or a name is not plain."""
    try:
        listing = json.loads(content)
    except (ValueError, RecursionError):
        return None
    paths = listing.get("child_paths") if isinstance(listing, dict) else None
    # Triton's remote cache lists names without paths.
    return list(paths) if isinstance(paths, (dict, list)) and all(map(is_plain, paths)) else None


def is_plain(name: object) -> bool:
    """Whether that is the name of a file in a key's directory."""
    return isinstance(name, str) and name not in ("", ".", "..") and os.path.basename(name) == name and "\0" not in name


class Place(NamedTuple):
    """The directory of a cache key; in a lower tier (``is_layer``) nothing is quarantined.

    ``is_fetched``: its files have just come from a lower tier.
    """

    directory: str
    is_layer: bool = False
    is_fetched: bool = False

    @property
    def root(self) -> str:
        """The cache that it is part of, which holds its records."""
        return os.path.dirname(self.directory)

    def path(self, name: str) -> str:
        """The path of the file of this name."""
        return os.path.join(self.directory, name)

    def file(self, path: str) -> CodeFile:
        """The file at this path, in its cache."""
        return CodeFile(path, self.root, Kind.KERNEL)

    def take(self, name: str) -> str | None:
        """The path to read the file at; None if it is gone, or nothing attests it. Raises OSError."""
        path = self.path(name)
        if not os.path.lexists(path) or not self.is_attested(path):
            return None
        if ownership.why_not_private(path) is None:
            return path
        content = self.read(path)
        if content is None:
            return None
        if not attestations.is_known(path, content):
            self.is_attested(path)  # reports its replacement, unless that is another writer's good one
            return None
        return gate.private_path(self.file(path), content)

    def group(self, name: str) -> dict[str, str] | None:
        """The paths to read its files at, by name; None unless all match the list's record, or each its own record."""
        if not os.path.lexists(self.path(LIST + name)):
            return None
        stated = self._stated(self.path(LIST + name))
        # Asked once for all of them: it takes a dozen system calls.
        is_private = bool(stated) and ownership.why_not_private(self.directory) is None
        found = {}
        for file, digest in (stated or {}).items():
            taken = self.take(file) if digest is None else self._take_stated(self.path(file), digest, is_private)
            if taken is None:
                return None
            found[file] = taken
        return found or None

    def _stated(self, path: str) -> dict[str, str | None] | None:
        """The files that the list names, with the digests that its record states, or None; None if it is unattested."""
        content = self.read(path)
        if content is None:
            return None
        stated = self._sealed(path)
        is_it = stated.get("sha256") == hashlib.sha256(content).hexdigest()
        if is_it and isinstance(stated.get("files"), dict):
            directory_faults.check(self.root)
            events.count(Count.CODE_VERIFIED)
            return {file: str(digest) for file, digest in stated["files"].items()}
        # A list of an older safecache, adopted, or trusted as private; anything else is refused and reported.
        if not self.is_attested(path) or not attestations.is_known(path, content):
            return None
        return dict.fromkeys(names_in(content) or ())

    def _sealed(self, path: str) -> dict[str, Any]:
        """What the list's record states; empty unless it can be read, verifies, and was made for this environment."""
        try:
            verdict, stated = manifests.read(self.file(path))
        except Unreadable:
            return {}
        return stated if verdict.reason is None and trust.foreign(verdict, Kind.KERNEL) is None else {}

    def _take_stated(self, path: str, digest: str, is_private: bool) -> str | None:
        try:
            status = filesystem.retry(lambda: filesystem.lstat(path), filesystem.LISTED)
        except OSError:
            return None  # removed, by whomever: the other files are not to blame
        is_private = is_private and _is_own(status)
        known = attestations.verified_digest(path, status) if is_private else None
        if known is not None and known.hex() == digest:
            return path
        content = self.read(path)
        if content is None:
            return None
        found = hashlib.sha256(content).digest()
        if found.hex() != digest:
            # Damaged, and then quarantined; or of another writer, which is not done or was killed.
            self.is_attested(path)
            return None
        attestations.add_verified(path, status, found)
        return path if is_private else gate.private_path(self.file(path), content)

    def is_attested(self, path: str) -> bool:
        """Whether something attests the file; otherwise it is reported, and quarantined unless in a lower tier."""
        try:
            if not self.is_layer:
                return gate.accept_or_quarantine(self.file(path))
            refusal, remedy = gate.refusal_for_file(self.file(path)), "It lies in a layer, and is left there."
        except Immovable as error:
            if quarantine.obstacle(self.root) is not None:  # reported as when a kernel cannot be kept
                manifests.report_obstacle(self.root, f"{path}: {error.evidence}", error)
                return False
            refusal, remedy = error.refusal, "It could not be moved away; remove it."
        except OSError as error:
            _note_unreadable(path, error)
            return False
        if refusal is not None:
            report.refuse(refusal, Kind.KERNEL, path, remedy)
        return refusal is None

    def read(self, path: str) -> bytes | None:
        """The unverified bytes of the file; None if it is gone, or, as reported, cannot or must not be read."""
        try:
            return entry_files.read_entry(path, entry_files.max_entry_size(Kind.KERNEL), listed=True)
        except opening.UnusableEntry:
            self.is_attested(path)
        except OSError as error:
            _note_unreadable(path, error)
        return None


def _note_unreadable(path: str, error: OSError) -> None:
    # A directory that cannot be entered cannot be written either, which is reported then.
    if os.path.lexists(path):
        evidence = error.evidence if isinstance(error, Unreadable) else f"{error.strerror}"
        report.refuse(Refusal(Reason.UNREADABLE, evidence), Kind.KERNEL, path, REMEDY, error=error)
