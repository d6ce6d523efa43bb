"""Bundles: the files of one cache key with their records, which travel together; verified in memory, then published."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from safecache.files import folders, opening
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting import report
from safecache.reporting.kinds import ENTRIES, Kind, Reason, SealedName, Travel
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, trust
from safecache.store import entry_files, manifests

__all__ = ["AT", "Bundle", "File", "collected", "is_key", "objection", "placed", "publish"]
# Where Triton's cache may lie in Inductor's: torch has one for each device.
AT = re.compile(r"triton/\d{1,4}|")


class File(NamedTuple):
    """``name``: below the directory of its bundle. ``record``: None if it has none."""

    name: str
    content: bytes
    record: bytes | None


class Bundle(NamedTuple):
    """What is sent and received as one: the files in ``directory``, or ``only`` that one, with its marker.

    ``root``: the cache that keeps their records.
    """

    kind: Kind
    key: str
    directory: str
    root: str
    only: str = ""

    def path(self, name: str) -> str:
        """The path of the bundle's file of this name."""
        return os.path.join(self.directory, name)

    @property
    def at(self) -> str:
        """Of a kernel: which of Triton's caches in Inductor's it lies in, such as triton/0; "" if it lies in none."""
        within = config.within_cache(self.root)[1] if self.kind is Kind.KERNEL else ""
        return within if AT.fullmatch(within) else ""

    def owns(self, name: str) -> bool:
        """Whether a file of this name may belong to it."""
        if self.only:
            return name in (self.only, self.only + layout.LOADED)
        if self.kind is Kind.TABLE:
            return name == layout.VLLM_TABLE or layout.VLLM_ARTIFACT.fullmatch(name) is not None
        is_plain = os.path.basename(name) == name and not name.startswith(".") and "\0" not in name
        return bool(name) and is_plain and not layout.is_temporary(name)

    def names(self) -> list[str]:
        """The names of its files, a list of them, or a table, last. Raises OSError."""
        files = [self.only, self.only + layout.LOADED] if self.only else folders.names_in(self.directory)
        return sorted(filter(self.owns, files), key=lambda name: (name.startswith(manifests.LIST), name))


def is_key(kind: Kind, key: str) -> bool:
    """Whether such a key may be one of this kind's: no path that is made of it leads out of its cache."""
    return bool(kind.tiers.key) and re.fullmatch(kind.tiers.key, key) is not None


def placed(kind: Kind, key: str, root: str) -> Bundle:
    """The bundle of this key in a cache ``root``, which may be one in a pack; the key is one of its kind's."""
    path = layout.path_of(kind, key, root)
    if kind.tiers.travel is Travel.GROUPS:
        return Bundle(kind, key, path, root)
    directory, name = os.path.split(path)
    return Bundle(kind, key, directory, root, name)


def collected(bundle: Bundle) -> tuple[File, ...]:
    """The bundle's files as they lie in the cache, with their records: those alone that verify. Raises OSError.

    None of what there is only a part of: a list of files that are all there is what readers of a kernel begin with, and
    vLLM ends if an artifact of its table does not load.
    """
    files = []
    for name in bundle.names():
        path = bundle.path(name)
        try:
            content = entry_files.read(path, entry_files.largest(bundle.kind))
            record = manifests.stored(CodeFile(path, bundle.root, bundle.kind)) if bundle.kind.has_record else None
        except (FileNotFoundError, opening.UnusableEntry):
            continue
        files.append(File(name, content, record))
    found = {file.name: file for file, refusal in _judged(files, bundle) if refusal is None}
    kept = tuple(file for file in found.values() if _has_all(file, found.keys(), bundle))
    is_part = bundle.kind is Kind.KERNEL and not any(_is_list(file) or file.name.endswith(".so") for file in kept)
    return () if is_part or _lacking_in(kept, bundle) else kept


def _is_list(file: File) -> bool:
    return file.name.startswith(manifests.LIST)


def _has_all(file: File, names: Collection[str], bundle: Bundle) -> bool:
    """Whether all are there that a list's verified record states; True of a file that is no list."""
    if bundle.kind is not Kind.KERNEL or not _is_list(file):
        return True
    return set(names).issuperset(_stated_by(file, bundle))


def _stated_by(file: File, bundle: Bundle) -> Mapping[str, object]:
    """The digests, by name, that a list's record states; none if it states none."""
    listed = manifests.verify(file.record, CodeFile(bundle.path(file.name), bundle.root, bundle.kind))[1].get("files")
    return listed if isinstance(listed, dict) else {}


def objection(files: Collection[File], bundle: Bundle) -> Refusal | None:
    """Why these are not used as this bundle; None if every file of it verifies."""
    for file, refusal in _judged(files, bundle):
        if refusal is not None:
            return refusal._replace(evidence=f"of {file.name[:64]!r} in it: {refusal.evidence}")
    lacking = _stated(files, bundle).keys() - {file.name for file in files}
    lacking |= _lacking_in(files, bundle)
    # Its reader would ask for it again and again, and who compiles it would find the name taken.
    return Refusal(Reason.DAMAGED, f"it lacks {min(lacking)[:64]!r}, which its list names") if lacking else None


def publish(file: File, bundle: Bundle, origin: str) -> bool:
    """Put a verified file of the bundle into the cache, after its record; False, and reported, if that fails.

    ``origin``: where it comes from, for a person.
    """
    path, kind = bundle.path(file.name), bundle.kind
    if file.record is not None:
        where, what = manifests.path_of(CodeFile(path, bundle.root, kind)), f"the record of {kind.noun} {path}"
        if not manifests.publish(where, file.record, bundle.root, what, kind):
            return False
    try:
        entry_files.publish(path, file.content, bundle.root)
    except OSError as error:
        report.fail_write(f"copy {kind.noun} {path} from {origin}", error, "Recompiling.", bundle.root)
        return False
    return True


def _lacking_in(files: Iterable[File], bundle: Bundle) -> set[str]:
    """The names of artifacts, or of the table of them, that belong to this bundle and are not among its files."""
    if bundle.kind is not Kind.TABLE:
        return set()
    found = {file.name: file.content for file in files}
    listed = layout.VLLM_ARTIFACT.findall(found.get(layout.VLLM_TABLE, b"").decode(errors="replace"))
    return {layout.VLLM_TABLE, *listed} - found.keys()


def _judged(files: Iterable[File], bundle: Bundle) -> Iterator[tuple[File, Refusal | None]]:
    """Each file with what is against using it as the bundle's."""
    files = list(files)
    stated = _stated(files, bundle)
    for file in files:
        if not bundle.owns(file.name) or (file.record is not None and not bundle.kind.has_record):
            yield file, Refusal(Reason.UNSAFE_NAME, "it is no file of this bundle, or has a record that it should not")
        elif bundle.kind.has_record:
            yield file, _objection(file, bundle, stated)
        else:
            key = "" if bundle.kind.proof.name is SealedName.NOTHING else bundle.key
            found = trust.examine(file.content, bundle.kind, key, None)
            is_named = bundle.kind not in ENTRIES or file.name == layout.entry_name(file.content)
            objection = None if is_named else Refusal(Reason.DAMAGED, "its name is not the hash of its content")
            yield file, found if isinstance(found, Refusal) else objection


def _stated(files: Iterable[File], bundle: Bundle) -> Mapping[str, object]:
    """The digests, by name, that the verified records of lists state of a bundle's other files."""
    found: dict[str, object] = {}
    for file in files:
        if bundle.kind is Kind.KERNEL and _is_list(file) and _objection(file, bundle, {}) is None:
            found |= _stated_by(file, bundle)
    return found


def _objection(file: File, bundle: Bundle, listed: Mapping[str, object]) -> Refusal | None:
    digest = hashlib.sha256(_attested(file.content, bundle.kind)).hexdigest()
    if file.record is None and listed.get(file.name) == digest:
        return None
    verdict, stated = manifests.verify(file.record, CodeFile(bundle.path(file.name), bundle.root, bundle.kind))
    if verdict.reason in trust.UNATTESTED:
        return trust.unattested(verdict, keyring.current(), "")
    if verdict.reason is not None:
        return Refusal(verdict.reason, trust.evidence(verdict))
    if stated["sha256"] != digest:
        return Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
    return trust.foreign(verdict, bundle.kind)


def _attested(content: bytes, kind: Kind) -> bytes:
    """What the record of such a file is of: autotuning results in one spelling, whoever wrote them."""
    if kind is not Kind.AUTOTUNING:
        return content
    try:
        return json.dumps(json.loads(content), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return content
