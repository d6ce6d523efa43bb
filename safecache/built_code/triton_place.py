"""Directory of one cache key in Triton's cache or in a lower tier: files are verified before they are read.

The files of a kernel form a group, and the record of its list states the digest of each. So a reader gets all of one
writer's files or none. The paths in the list, which hold only where it was written, do not matter.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, NamedTuple

from safecache.fs import filesystem, opening, ownership
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref, locate
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import trust
from safecache.store import attestations, entry_files, gate, manifests, quarantine
from safecache.store.manifests import LIST
from safecache.tiers import directory_faults
from safecache.tiers.directory_faults import Immovable, Unreadable

__all__ = [
    "LIST",
    "REMEDY",
    "Place",
    "is_plain",
    "parse_names",
]

REMEDY = "Recompiling it. Help: make it readable, or remove it"


def parse_names(content: bytes) -> list[str] | None:
    """The names in a list; None if it is malformed, or a name is not plain."""
    try:
        listing = json.loads(content)
    except (ValueError, RecursionError):
        return None
    paths = listing.get("child_paths") if isinstance(listing, dict) else None
    # Triton's remote cache lists names without paths.
    return list(paths) if isinstance(paths, (dict, list)) and all(map(is_plain, paths)) else None


def is_plain(name: object) -> bool:
    """Tell whether ``name`` is that of a file in a key's directory, and leads nowhere else."""
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

    def name_path(self, name: str) -> str:
        """The path of the file of this name."""
        return os.path.join(self.directory, name)

    @property
    def ref(self) -> Ref:
        """The kernel."""
        return locate(Kind.KERNEL, self.directory, self.root)

    def name_file(self, name: str) -> CodeFile:
        """The file of this name, or at this path, in its cache."""
        return CodeFile(self.name_path(name), self.root, Kind.KERNEL)

    def take(self, name: str) -> str | None:
        """The path to read the file at; None if it is gone, or nothing attests it. Raises OSError."""
        path = self.name_path(name)
        if not os.path.lexists(path) or not self.is_attested(path):
            return None
        if ownership.find_exposure(path) is None:
            return path
        content = self.read_unverified(path)
        if content is None:
            return None
        if not attestations.is_known(path, content):
            self.is_attested(path)  # reports its replacement, unless that is another writer's good one
            return None
        return gate.make_private_path(self.name_file(path), content)

    def take_group(self, name: str) -> dict[str, str] | None:
        """The paths to read its files at, by name; None unless all match the list's record, or each its own record."""
        if not os.path.lexists(self.name_path(LIST + name)):
            return None
        stated = self._read_digests(self.name_path(LIST + name))
        # Asked once for all of them: it takes a dozen system calls.
        is_private = bool(stated) and ownership.find_exposure(self.directory) is None
        found = {}
        for file, digest in (stated or {}).items():
            taken = self.take(file) if digest is None else self._take_stated(self.name_path(file), digest, is_private)
            if taken is None:
                return None
            found[file] = taken
        return found or None

    def _read_digests(self, path: str) -> dict[str, str | None] | None:
        """The files that the list names, with the digests that its record states, or None; None if it is unattested."""
        content = self.read_unverified(path)
        if content is None:
            return None
        stated = self._read_record(path)
        is_it = stated.get("sha256") == hashlib.sha256(content).hexdigest()
        if is_it and isinstance(stated.get("files"), dict):
            directory_faults.check(self.root)
            events.count(Count.CODE_VERIFIED)
            return {file: str(digest) for file, digest in stated["files"].items()}
        # A list of an older safecache, adopted, or trusted as private; anything else is refused and reported.
        if not self.is_attested(path) or not attestations.is_known(path, content):
            return None
        return dict.fromkeys(parse_names(content) or ())

    def _read_record(self, path: str) -> dict[str, Any]:
        """Return what the list's record states; empty unless it is readable, verifies, and fits this environment."""
        try:
            verdict, stated = manifests.read(self.name_file(path))
        except Unreadable:
            return {}
        return stated if verdict.reason is None and trust.find_mismatch(verdict, Kind.KERNEL) is None else {}

    def _take_stated(self, path: str, digest: str, is_private: bool) -> str | None:
        try:
            status = filesystem.retry(lambda: filesystem.lstat(path), filesystem.LISTED)
        except OSError:
            return None  # removed, by whomever: the other files are not to blame
        is_private = is_private and ownership.is_own(status)
        known = attestations.verified_digest(path, status) if is_private else None
        if known is not None and known.hex() == digest:
            return path
        content = self.read_unverified(path)
        if content is None:
            return None
        found = hashlib.sha256(content).digest()
        # Damaged, and then quarantined; or of another writer, which is not done or was killed.
        if found.hex() != digest and not (self.is_attested(path) and config.current().is_observing):
            return None
        attestations.add_verified(path, status, found)
        return path if is_private else gate.make_private_path(self.name_file(path), content)

    def is_attested(self, path: str) -> bool:
        """Tell whether something attests the file; if not, report it, and quarantine it unless in a lower tier."""
        try:
            if not self.is_layer:
                return gate.accept_or_quarantine(self.name_file(path))
            refusal = gate.judge_file(self.name_file(path), is_lower=True)
            remedy = "It stays, because it is in a lower tier."
        except Immovable as error:
            if quarantine.find_obstacle(self.root) is not None:  # reported as when a kernel cannot be kept
                manifests.report_obstacle(self.root, path, error.evidence, error)
                return False
            refusal, remedy = error.refusal, "It cannot be quarantined. Help: remove it"
        except OSError as error:
            _note_unreadable(path, error)
            return False
        if refusal is not None:
            report.refuse(refusal, Kind.KERNEL, path, remedy)
        return refusal is None

    def read_unverified(self, path: str) -> bytes | None:
        """The unverified bytes of the file; None if it is gone, or, as reported, cannot or must not be read."""
        try:
            return entry_files.read_unverified_entry(path, entry_files.max_entry_size(Kind.KERNEL), listed=True)
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
