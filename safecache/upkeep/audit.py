"""Judges a cache as a load would, without loading; and seals what lies there, on the user's word."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from safecache.code import device_kernels, kept_code, ninja_builds, packages
from safecache.errors import EntryRefusedError
from safecache.files import folders, opening, ownership, parallel
from safecache.places import layout
from safecache.places.layout import CodeFile, Location
from safecache.reporting.kinds import Count, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, provenance, seal, trust
from safecache.signing.keyring import Key
from safecache.store import entry_files, gate, manifests

__all__ = ["Audit", "Refused", "Resealing", "adopt", "audit", "countersign", "each", "replace"]


class Refused(NamedTuple):
    """A file that a load would not use."""

    path: str
    reason: str
    evidence: str


class Audit(NamedTuple):
    """``outcomes``: how many files by the value of their Count or Reason."""

    outcomes: dict[str, int]
    refused: list[Refused]


def audit(locations: Iterable[Location], code: Iterable[CodeFile], tell: Callable[[], object] = lambda: None) -> Audit:
    """Judge every one of them, several at once. Raises OSError from the arguments alone.

    What is refused is in the order of the arguments. ``tell`` is called after each file.
    """
    keyring.current()  # by one thread: the first use makes a key
    outcomes: Counter[str] = Counter()
    refused = []
    files: list[Location | CodeFile] = [*locations, *code]
    for found in parallel.map_in_threads(_judge, files):
        tell()
        outcomes[found.reason if isinstance(found, Refused) else found.value] += 1
        if isinstance(found, Refused):
            refused.append(found)
    return Audit(dict(outcomes), refused)


def _judge(file: Location | CodeFile) -> Count | Refused:
    try:
        if isinstance(file, CodeFile):
            found = gate.refusal_for_file(file) or Count.CODE_VERIFIED
        else:
            content = entry_files.read_entry(file.path, entry_files.max_entry_size(file.kind))
            found = trust.examine(content, file.kind, file.cache_key, file.path)
    except opening.UnusableEntry as error:
        return Refused(file.path, error.reason.value, error.detail)
    except OSError as error:
        return Refused(file.path, Reason.UNREADABLE.value, error.strerror or str(error))
    return Refused(file.path, found.reason.value, found.evidence) if isinstance(found, Refusal) else found


class Resealing(NamedTuple):
    """What became of the entries: how many were sealed, how many were already, and which not, with the reason."""

    sealed: int
    already_sealed: int
    skipped: list[tuple[str, str]]


def each(steps: Iterable[tuple[str, Callable[[], bool]]]) -> Resealing:
    """Do the step of every path: it says whether it sealed what lies there, and raises where it must not."""
    done, skipped = [], []
    for path, step in steps:
        try:
            done.append(step())
        except (opening.UnusableEntry, EntryRefusedError, OSError) as error:
            detail = error.detail if isinstance(error, opening.UnusableEntry) else str(error)
            skipped.append((path, detail))
    return Resealing(done.count(True), done.count(False), skipped)


def replace(location: Location, content: bytes, root: str, key: Key, origin: Mapping[str, str]) -> None:
    """Put the payload of ``content``, sealed with ``key``, in place of the file there. Raises OSError."""
    payload, namespace = seal.payload_of(content), config.current().namespace
    sealed = seal.attach(payload, location.kind, location.cache_key, key, origin, namespace)
    entry_files.publish(os.path.join(os.path.dirname(location.path), layout.entry_name(sealed)), sealed, root)
    with folders.open_parent(root, location.path) as (folder, name):
        folder.unlink(name)


def countersign(locations: Iterable[Location], code: Iterable[CodeFile]) -> Resealing:
    """Seal everything that verifies now, by any trusted key, with our own. What does not verify is skipped.

    The provenance stays that of the build, with the id of the key that attested it. Raises KeyringError without a
    key to seal with.
    """
    key = keyring.sealing_key()
    keys, namespace = keyring.current(), config.current().namespace

    def seal_entry(location: Location) -> bool:
        content = entry_files.read_entry(location.path, entry_files.max_entry_size(location.kind))
        verdict = seal.verify(content, location.kind, location.cache_key, keys.find, namespace)
        origin = _countersigned(verdict, key)
        if origin is not None:
            replace(location, content, layout.cache_root(location.path), key, origin)
        return origin is not None

    def seal_record(file: CodeFile) -> bool:
        verdict, stated = manifests.read(file)
        origin = _countersigned(verdict, key)
        if origin is None:
            return False
        if entry_files.digest(file.path, entry_files.max_entry_size(file.kind)).hex() != stated["sha256"]:
            raise EntryRefusedError(f"{Reason.DAMAGED.value}: its digest is not the one that was sealed")
        return manifests.write(file, stated, key, origin)

    return each(
        [(location.path, partial(seal_entry, location)) for location in locations]
        + [(file.path, partial(seal_record, file)) for file in code]
    )


def _countersigned(verdict: seal.Verdict, key: Key) -> dict[str, str] | None:
    """The provenance to seal again with ``key``; None if that has sealed it. Raises EntryRefusedError if nobody has."""
    if verdict.reason in trust.UNATTESTED:
        raise EntryRefusedError(f"{verdict.reason.value}: nobody that is trusted has sealed it")
    if verdict.reason is not None:
        raise EntryRefusedError(f"{verdict.reason.value}: {trust.evidence(verdict)}")
    if verdict.key_id is None or verdict.key_id == key.id:
        return None
    return {**(verdict.provenance or {}), "countersigned": verdict.key_id.hex()}


def adopt(root: str) -> Resealing:
    """Seal every intact entry below the cache directory ``root`` with our key, replacing the file without a seal.

    Or the package of AOTInductor which that names.

    Compiled code is sealed too, by a record beside the cache; what ninja takes for up to date of its builds; what
    SGLang and TileLang have published; and, in Inductor's cache, the kernels that DeepGEMM has.

    What somebody else could have written is never sealed: raises EntryRefusedError for a directory that is not
    private, and skips such files. Raises KeyringError without a key, OSError for a directory that cannot be read.
    """
    if os.path.isfile(root):
        return each([(root, partial(packages.adopt, root))])
    os.scandir(root).close()
    key, keys = keyring.sealing_key(), keyring.current()
    objection = ownership.why_not_private(root)
    if objection is not None:
        raise EntryRefusedError(f"{root} is not private, so its entries are not sealed: {objection}")

    def seal_file(location: layout.Location) -> bool:
        content = _adoptable(location, keys)
        if content is not None:
            replace(location, content, root, key, {**provenance.statement(location.kind), "adopted": "yes"})
        return content is not None

    steps = [(location.path, partial(seal_file, location)) for location in layout.walk(root)]
    built = {path: step for build in ninja_builds.find_builds(root) for path, step in build.adoptions()}
    steps += [
        (file.path, partial(_adopt_code, file, kept_code.keep_library)) for file in kept_code.find_libraries(root)
    ]
    steps += [(directory, partial(_adopt_group, directory, names)) for directory, names in kept_code.find_groups(root)]
    steps += [
        (file.path, partial(_adopt_code, file))
        for file in layout.code(root)
        if os.path.realpath(file.path) not in built
    ]
    return each([*steps, *built.items(), *device_kernels.adoptions(root)])


def _adopt_code(file: CodeFile, keep: Callable[[str, bytes], None] = lambda *_: None) -> bool:
    refusal = gate.refusal_for_file(file)
    return _adopt_content(file, refusal, lambda: _digest_private(file.path), keep)


def _adopt_group(directory: str, names: Iterable[str]) -> bool:
    digests = {name: _digest_private(os.path.join(directory, name)) for name in names}
    file, digest = kept_code.name_group(directory, digests)
    return _adopt_content(file, gate.refusal_for_content(file, digest), lambda: digest)


def _digest_private(path: str) -> bytes:
    return opening.digest_regular(path, opening.check_private(path), flags=os.O_NOFOLLOW)


def _adopt_content(
    file: CodeFile,
    refusal: Refusal | None,
    digest_of: Callable[[], bytes],
    keep: Callable[[str, bytes], None] = lambda *_: None,
) -> bool:
    """Seal what is refused because no trusted key has; False if one has. Raises EntryRefusedError for anything else."""
    if refusal is None:
        return False
    if refusal.reason in trust.UNATTESTED:
        digest = digest_of()
        refusal = gate.refusal_for_content(file, digest, is_private=True)
    if refusal is not None:
        raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}")
    gate.attest_file(file, digest=digest)
    keep(file.path, digest)
    return True


def _adoptable(location: layout.Location, keys: keyring.Keyring) -> bytes | None:
    """The content of one file; None if it is sealed already. Raises for one that is not private or not intact."""
    most = entry_files.max_entry_size(location.kind, unsealed=True)
    content = entry_files.read_entry(location.path, most)
    verdict = seal.verify(content, location.kind, location.cache_key, keys.find, config.current().namespace)
    if verdict.reason is None:
        return None
    if verdict.reason not in trust.UNATTESTED:
        raise EntryRefusedError(f"{verdict.reason.value}: {trust.evidence(verdict)}")
    refusal = trust.contradiction(content, location.kind, location.cache_key)
    if refusal is not None:
        raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}")
    private = entry_files.read(location.path, most, check=opening.check_private(location.path))
    if private != content:
        raise EntryRefusedError("it was replaced while it was looked at")
    if os.path.basename(location.path) != layout.entry_name(content):
        raise EntryRefusedError("damaged: its name is not the hash of its content")
    return content
