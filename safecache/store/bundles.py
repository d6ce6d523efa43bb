"""Bundles: the files of one cache key with their records, which travel together; verified in memory, then published.

What a cache lacks is taken from the first tier below it whose bundle verifies: see fetch().
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

from safecache.fs import opening
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import Bundle, File, plugs
from safecache.reporting import events, report
from safecache.reporting.kinds import ENTRIES, Kind, Reason, SealedName
from safecache.reporting.report import Refusal
from safecache.signing import trust
from safecache.store import directories, entry_files, gate, manifests
from safecache.tiers import fallback

__all__ = ["fetch", "judge_bundle", "publish", "read_verified_files"]

_COPY_FAILED = "Using it in place, or recompiling it."


def fetch(ref: Ref) -> Ref | None:
    """Copy the bundle of ``ref`` into its cache, from the nearest tier below that has it and verifies.

    Return ``ref`` once it is copied; the bundle's ref in a directory below if the cache cannot be written; None if no
    tier has it. A refused bundle is reported, and the next tier tried. Raises the reason's error in strict mode.
    """
    place = ref.directory if os.path.isdir(ref.directory) else ref.root
    # Triton's own cache, which no fallback directory replaces.
    is_writable = ref.kind is not Kind.KERNEL or os.access(place, os.W_OK, effective_ids=True)
    for bundle in itertools.chain(directories.find_candidates(ref), plugs.tiers.find_candidates(ref)):
        with report.contain_errors(f"the check of {bundle.origin}", "Recompiling it."):
            is_there = bool(bundle.ref.root)
            at = bundle.ref if is_there else ref
            found = ("", bundle.refusal) if bundle.refusal else _find_refusal(bundle.files, at, lie_there=is_there)
            # INVARIANT: nothing of a bundle is copied into a cache before all of it is verified.
            if found is not None:
                bundle.judged(found[1])
                _report_refusal(bundle, *found, ref)
            elif (is_writable or not is_there) and publish(bundle.files, ref, bundle.origin):
                bundle.judged(None)
                return ref
            elif is_there:
                return at
    return None


def _report_refusal(bundle: Bundle, name: str, refusal: Refusal, ref: Ref) -> None:
    if not bundle.ref.root:
        refusal = _name_file(name, refusal)._replace(cause=f"{bundle.label} {ref.kind.value}")
        report.refuse(refusal, ref.kind, f"{ref.key[:64]} from {bundle.origin}", "Recompiling it.")
    elif bundle.ref.root == fallback.find_original(ref.root):
        events.count(refusal.reason)  # that this cache is not usable as it is has been reported
    else:
        report.refuse(refusal, ref.kind, bundle.ref.name_file(name).path, directories.REMEDY)


def _name_file(name: str, refusal: Refusal) -> Refusal:
    return refusal._replace(evidence=f"of {name[:64]!r} in it: {refusal.evidence}") if name else refusal


def read_verified_files(ref: Ref) -> tuple[File, ...]:
    """Return the verified files of a bundle in its cache, with their records. Raises OSError.

    A list that names a missing file is left out, since readers of a kernel rely on it. Return nothing of an incomplete
    bundle: a kernel without list and library, or a table of vLLM that names a missing artifact, which would end vLLM.
    """
    files = []
    # A list, or a table, last: it is published after the files that it names.
    for name in sorted(ref.list_names(), key=lambda name: name.startswith(manifests.LIST)):
        file = ref.name_file(name)
        try:
            content = entry_files.read_unverified(file.path, entry_files.max_entry_size(ref.kind))
            record = manifests.read_unverified_record(file) if ref.kind.has_record else None
        except (FileNotFoundError, opening.UnusableEntry):
            continue
        files.append(File(name, content, record))
    found = {file.name: file for file, refusal in _judge_files(files, ref) if refusal is None}
    kept = tuple(file for file in found.values() if _has_all(file, found.keys(), ref))
    is_part = ref.kind is Kind.KERNEL and not any(_is_list(file) or file.name.endswith(".so") for file in kept)
    return () if is_part or _find_lacking(kept, ref) else kept


def _is_list(file: File) -> bool:
    return file.name.startswith(manifests.LIST)


def _has_all(file: File, names: Collection[str], ref: Ref) -> bool:
    """Tell whether all files are there that a list's verified record states; True for a file that is no list."""
    if ref.kind is not Kind.KERNEL or not _is_list(file):
        return True
    return set(names).issuperset(_verify_list(file, ref))


def _verify_list(file: File, ref: Ref) -> Mapping[str, object]:
    """Return the digests, by name, that a list's record states; none if it states none."""
    listed = manifests.verify(file.record, ref.name_file(file.name))[1].get("files")
    return listed if isinstance(listed, dict) else {}


def judge_bundle(files: Collection[File], ref: Ref) -> Refusal | None:
    """Return why ``files`` are not used as the bundle of ``ref``; None if they verify and none is missing."""
    found = _find_refusal(files, ref)
    return None if found is None else _name_file(*found)


def _find_refusal(files: Collection[File], ref: Ref, *, lie_there: bool = False) -> tuple[str, Refusal] | None:
    """Return the name of a file, and why these are not used as this bundle.

    ``lie_there``: they were read from where the ref says, so that the user may trust them as private.
    """
    if not files:
        return "", Refusal(Reason.EMPTY, "there is nothing in it")
    for file, refusal in _judge_files(files, ref, lie_there=lie_there):
        if refusal is not None:
            return file.name, refusal
    lacking = (_collect_digests(files, ref).keys() - {file.name for file in files}) | _find_lacking(files, ref)
    # Its reader would ask for it again and again, and who compiles it would find the name taken.
    return ("", Refusal(Reason.DAMAGED, f"it lacks {min(lacking)[:64]!r}, which its list names")) if lacking else None


def publish(files: Iterable[File], ref: Ref, origin: str) -> bool:
    """Write verified files of the bundle into its cache, each after its record. Return False if that fails.

    ``origin``: where the files come from, for messages. A failure is reported; strict mode raises CacheWriteError.
    """
    for file in files:
        placed = ref.name_file(file.name)
        what = f"{ref.kind.noun} {placed.path}"
        where = manifests.record_path(placed)
        if file.record is not None and not manifests.publish(
            where, file.record, ref.root, f"the record of {what}", ref.kind
        ):
            return False
        try:
            entry_files.publish(placed.path, file.content, ref.root, file.mode)
        except OSError as error:
            report.fail_write(f"copy {what} from {origin}", error, _COPY_FAILED, ref.root)
            return False
    return True


def _find_lacking(files: Iterable[File], ref: Ref) -> set[str]:
    """Return the artifacts, or their table, that belong to this bundle and are not among its files, by name."""
    if ref.kind is not Kind.TABLE:
        return set()
    found = {file.name: file.content for file in files}
    listed = layout.VLLM_ARTIFACT.findall(found.get(layout.VLLM_TABLE, b"").decode(errors="replace"))
    return {layout.VLLM_TABLE, *listed} - found.keys()


def _judge_files(files: Iterable[File], ref: Ref, *, lie_there: bool = False) -> Iterator[tuple[File, Refusal | None]]:
    """Each file with what is against using it as the bundle's."""
    files = list(files)
    stated = _collect_digests(files, ref)
    for file in files:
        # INVARIANT: a bundle has no file but its own.
        if not ref.can_own(file.name) or (file.record is not None and not ref.kind.has_record):
            yield file, Refusal(Reason.UNSAFE_NAME, "it is no file of this bundle, or has a record that it should not")
        elif ref.kind.has_record:
            yield file, _judge_file(file, ref, stated, lie_there=lie_there)
        else:
            key = "" if ref.kind.proof.name is SealedName.NOTHING else ref.key
            found = trust.examine(file.content, ref.kind, key, None)
            is_named = ref.kind not in ENTRIES or file.name == layout.name_entry(file.content)
            objection = None if is_named else Refusal(Reason.DAMAGED, "its name is not the hash of its content")
            yield file, found if isinstance(found, Refusal) else objection


def _collect_digests(files: Iterable[File], ref: Ref) -> Mapping[str, object]:
    """Return the digests, by name, that the verified records of lists state of a bundle's other files."""
    found: dict[str, object] = {}
    for file in files:
        if ref.kind is Kind.KERNEL and _is_list(file) and _judge_file(file, ref, {}) is None:
            found |= _verify_list(file, ref)
    return found


def _judge_file(file: File, ref: Ref, listed: Mapping[str, object], *, lie_there: bool = False) -> Refusal | None:
    digest = hashlib.sha256(_normalise_content(file.content, ref.kind)).digest()
    if file.record is None and file.name in listed:
        is_it = listed[file.name] == digest.hex()
        return None if is_it else Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")
    is_private = None if lie_there else False
    return gate.judge_content(ref.name_file(file.name), digest, (file.record,), is_private=is_private)


def _normalise_content(content: bytes, kind: Kind) -> bytes:
    """Return the content that a file's record attests: autotuning results in one spelling, whoever wrote them."""
    if kind is not Kind.AUTOTUNING:
        return content
    try:
        return json.dumps(json.loads(content), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return content
