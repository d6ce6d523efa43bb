"""Judge files in a cache or in quarantine as a load would, without loading; seal or restore them."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from safecache.built_code import device_kernels, kept_code, ninja_builds, packages
from safecache.crash_guard import strikes
from safecache.errors import EntryRefusedError
from safecache.fs import folders, opening, ownership, parallel
from safecache.fs.folders import Folder
from safecache.places import layout, metadata, refs
from safecache.places.layout import CodeFile, Location
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, provenance, seal, trust
from safecache.signing.keyring import Key
from safecache.store import entry_files, gate, manifests, quarantine
from safecache.store.groups import Group
from safecache.upkeep import inventory

__all__ = [
    "Audit",
    "Quarantined",
    "Refused",
    "Resealing",
    "Struck",
    "adopt",
    "audit",
    "countersign",
    "find_objection",
    "list_quarantined",
    "list_struck",
    "remove_quarantined",
    "replace_entry",
    "restore_quarantined",
    "seal_each",
]


_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Refused(NamedTuple):
    """File that a load would refuse. ``reason``: the value of a Reason; ``evidence``: its cause, for a person."""

    path: str
    reason: str
    evidence: str


class Audit(NamedTuple):
    """Result of audit(). ``outcomes``: number of files by the value of their Count or Reason."""

    outcomes: dict[str, int]
    refused: list[Refused]


def audit(locations: Iterable[Location], code: Iterable[CodeFile], tell: Callable[[], object] = lambda: None) -> Audit:
    """Judge every file as a load would, in several threads, without loading it.

    ``tell`` is called after each file. Audit.refused has the order of the arguments, ``locations`` first. Raises
    OSError only if iterating an argument does.
    """
    keyring.current()  # by one thread: the first use makes a key
    outcomes: Counter[str] = Counter()
    refused = []
    files: list[Location | CodeFile] = [*locations, *code]
    for found in parallel.map_in_threads(_judge_file, files):
        tell()
        outcomes[found.reason if isinstance(found, Refused) else found.value] += 1
        if isinstance(found, Refused):
            refused.append(found)
    return Audit(dict(outcomes), refused)


def _judge_file(file: Location | CodeFile) -> Count | Refused:
    try:
        if isinstance(file, CodeFile):
            found = gate.judge_file(file) or Count.CODE_VERIFIED
        else:
            content = entry_files.read_unverified_entry(file.path, entry_files.max_entry_size(file.kind))
            found = trust.examine(content, file.kind, file.cache_key, file.path)
    except opening.UnusableEntry as error:
        return Refused(file.path, error.reason.value, error.detail)
    except OSError as error:
        return Refused(file.path, Reason.UNREADABLE.value, error.strerror or str(error))
    return Refused(file.path, found.reason.value, found.evidence) if isinstance(found, Refusal) else found


class Resealing(NamedTuple):
    """Number of files that were sealed, and that already were; and the ``skipped`` ones as (path, reason)."""

    sealed: int
    already_sealed: int
    skipped: list[tuple[str, str]]


def seal_each(steps: Iterable[tuple[str, Callable[[], bool]]]) -> Resealing:
    """Do the step of every path: it says whether it sealed what lies there, and raises where it must not."""
    done, skipped = [], []
    for path, step in steps:
        try:
            done.append(step())
        except (opening.UnusableEntry, EntryRefusedError, OSError) as error:
            detail = error.detail if isinstance(error, opening.UnusableEntry) else str(error)
            skipped.append((path, detail))
    return Resealing(done.count(True), done.count(False), skipped)


def replace_entry(location: Location, content: bytes, root: str, key: Key, origin: Mapping[str, str]) -> None:
    """Put the payload of ``content``, sealed with ``key``, in place of the file there. Raises OSError."""
    payload, namespace = seal.strip_unverified(content), config.current().namespace
    sealed = seal.attach(payload, location.kind, location.cache_key, key, origin, namespace)
    entry_files.publish(os.path.join(os.path.dirname(location.path), layout.name_entry(sealed)), sealed, root)
    with folders.open_parent(root, location.path) as (folder, name):
        folder.unlink(name)


def countersign(locations: Iterable[Location], code: Iterable[CodeFile]) -> Resealing:
    """Re-seal with this user's key every file that verifies under any trusted key, and skip the others.

    The provenance stays that of the build, with the id of the key that attested it. Raises KeyringError without a
    sealing key.
    """
    key = keyring.sealing_key()
    keys, namespace = keyring.current(), config.current().namespace

    def seal_entry(location: Location) -> bool:
        content = entry_files.read_unverified_entry(location.path, entry_files.max_entry_size(location.kind))
        verdict = seal.verify(content, location.kind, location.cache_key, keys.find, namespace)
        origin = _countersign_origin(verdict, key)
        if origin is not None:
            replace_entry(location, content, layout.find_cache_root(location.path), key, origin)
        return origin is not None

    def seal_record(file: CodeFile) -> bool:
        verdict, stated = manifests.read(file)
        origin = _countersign_origin(verdict, key)
        if origin is None:
            return False
        if entry_files.digest(file.path, entry_files.max_entry_size(file.kind)).hex() != stated["sha256"]:
            raise EntryRefusedError(f"{Reason.DAMAGED.value}: its digest is not the one that was sealed")
        return manifests.write(file, stated, key, origin)

    return seal_each(
        [(location.path, partial(seal_entry, location)) for location in locations]
        + [(file.path, partial(seal_record, file)) for file in code]
    )


def _countersign_origin(verdict: seal.Verdict, key: Key) -> dict[str, str] | None:
    """The provenance to seal again with ``key``; None if that has sealed it. Raises EntryRefusedError if nobody has."""
    if verdict.reason in trust.UNATTESTED:
        raise EntryRefusedError(f"{verdict.reason.value}: nobody that is trusted has sealed it")
    if verdict.reason is not None:
        raise EntryRefusedError(f"{verdict.reason.value}: {trust.explain_verdict(verdict)}")
    if verdict.key_id is None or verdict.key_id == key.id:
        return None
    return {**(verdict.provenance or {}), "countersigned": verdict.key_id.hex()}


def adopt(root: str) -> Resealing:
    """Seal every intact unsealed file in the private cache directory ``root`` with this user's key.

    ``root`` may also be the file of one AOTInductor package. A sealed entry replaces the entry without a seal. Compiled
    code gets a sealed record. So do ninja builds that ninja takes for up to date, files that SGLang and TileLang have
    published, and DeepGEMM's kernels in Inductor's cache.

    Never seals what another user could have written: raises EntryRefusedError if ``root`` is not private, and skips
    such files. Raises KeyringError without a key, and OSError if ``root`` cannot be read.
    """
    if os.path.isfile(root):
        return seal_each([(root, partial(packages.adopt, root))])
    os.scandir(root).close()
    key, keys = keyring.sealing_key(), keyring.current()
    objection = ownership.find_exposure(root)
    if objection is not None:
        raise EntryRefusedError(f"{root} is not private, so its entries are not sealed: {objection}")

    def seal_file(location: layout.Location) -> bool:
        content = _read_adoptable(location, keys)
        if content is not None:
            replace_entry(location, content, root, key, {**provenance.make_statement(location.kind), "adopted": "yes"})
        return content is not None

    steps = [(location.path, partial(seal_file, location)) for location in layout.walk(root)]
    built = {path: step for build in ninja_builds.find_builds(root) for path, step in build.find_adoptions()}
    steps += [
        (file.path, partial(_adopt_code, file, kept_code.keep_library)) for file in kept_code.find_libraries(root)
    ]
    steps += [(directory, partial(_adopt_group, directory, names)) for directory, names in kept_code.find_groups(root)]
    steps += [
        (file.path, partial(_adopt_code, file))
        for file in layout.walk_code(root)
        if os.path.realpath(file.path) not in built
    ]
    return seal_each([*steps, *built.items(), *device_kernels.find_adoptions(root)])


def _adopt_code(file: CodeFile, keep: Callable[[str, bytes], None] = lambda *_: None) -> bool:
    refusal = gate.judge_file(file)
    return _adopt_content(file, refusal, lambda: _digest_private(file.path), keep)


def _adopt_group(directory: str, names: Iterable[str]) -> bool:
    digests = {name: _digest_private(os.path.join(directory, name)) for name in names}
    file, digest = kept_code.name_group(directory, digests)
    return _adopt_content(file, gate.judge_content(file, digest), lambda: digest)


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
        refusal = gate.judge_content(file, digest, is_private=True)
    if refusal is not None:
        raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}")
    gate.attest_file(file, digest=digest)
    keep(file.path, digest)
    return True


def _read_adoptable(location: layout.Location, keys: keyring.Keyring) -> bytes | None:
    """The content of one file; None if it is sealed already. Raises for one that is not private or not intact."""
    most = entry_files.max_entry_size(location.kind, unsealed=True)
    content = entry_files.read_unverified_entry(location.path, most)
    verdict = seal.verify(content, location.kind, location.cache_key, keys.find, config.current().namespace)
    if verdict.reason is None:
        return None
    if verdict.reason not in trust.UNATTESTED:
        raise EntryRefusedError(f"{verdict.reason.value}: {trust.explain_verdict(verdict)}")
    refusal = trust.find_contradiction(content, location.kind, location.cache_key)
    if refusal is not None:
        raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}")
    private = entry_files.read_unverified(location.path, most, check=opening.check_private(location.path))
    if private != content:
        raise EntryRefusedError("it was replaced while it was looked at")
    if os.path.basename(location.path) != layout.name_entry(content):
        raise EntryRefusedError("damaged: its name is not the hash of its content")
    return content


class Quarantined(NamedTuple):
    """Item ``name`` in the quarantine of the cache ``root``. ``size``: in bytes, without the note.

    ``origin``, ``reason`` and ``time`` come from the note, unverified; "" without one.
    """

    name: str
    root: str
    origin: str
    reason: str
    time: str
    size: int
    files: int

    @property
    def path(self) -> str:
        """Path of the item in the quarantine."""
        return metadata.make_path(self.root, metadata.QUARANTINE, self.name)


def list_quarantined(directories: Iterable[str]) -> list[Quarantined]:
    """Return all quarantined items of these cache directories, in their order. Raises OSError."""
    found = [group for directory in directories for group in inventory.take_inventory(directory).groups]
    return [
        _describe_item(group)
        for group in found
        if group.kind is Kind.QUARANTINE
        and quarantine.is_its_name(group.name)
        and group.name in map(os.path.basename, group.paths)
    ]


def _describe_item(group: Group) -> Quarantined:
    note = f"{group.name}.json"
    there = [file for file in group.files if os.path.basename(file.path) != note]
    said = quarantine.read_note(metadata.make_path(group.root, metadata.QUARANTINE, note))
    size = sum(file.size for file in there)
    return Quarantined(
        group.name, group.root, said.get("from", ""), said.get("reason", ""), said.get("time", ""), size, len(there)
    )


def _find_place(item: Quarantined) -> Location | CodeFile | None:
    """Return where ``item`` was in its cache, and as which kind; None if no file with a seal belongs there."""
    entry = layout.locate(item.origin)
    if entry is not None:
        parts = entry.path.split(os.sep)[-3 if entry.kind is Kind.AOT_ENTRY else -4 :]
        return entry._replace(path=os.path.join(item.root, *parts))
    folder, name = os.path.split(item.origin)
    folder = os.path.basename(folder)
    if layout.TRITON_KEY.fullmatch(folder) and name:
        return CodeFile(os.path.join(item.root, folder, name), item.root, Kind.KERNEL)
    if not name.endswith((".so", ".o", ".gch")):
        return None
    if folder == os.path.basename(item.root):  # a header's, which has a directory of its key's with its own records
        return CodeFile(os.path.join(item.root, name), item.root, Kind.NATIVE_CODE)
    is_code = layout.CODE_FOLDER.fullmatch(folder)
    return CodeFile(os.path.join(item.root, folder, name), item.root, Kind.NATIVE_CODE) if is_code else None


def find_objection(item: Quarantined) -> str | None:
    """Return the reason for which a load would refuse ``item`` if restored; None if accepted. Raises OSError."""
    with quarantine.open_quarantine(item.root) as directory:
        return _judge_item(directory, item, _find_place(item))


def _judge_item(directory: Folder, item: Quarantined, place: Location | CodeFile | None) -> str | None:
    if place is None:
        return "where it lay, as far as its note tells, nothing is kept that has a seal"
    within, most = f"{directory.path}/{item.name}", entry_files.max_entry_size(place.kind)
    try:
        opening.check_regular(directory.get_status(item.name))
        if isinstance(place, Location):
            found = trust.examine(entry_files.read_unverified(within, most), place.kind, place.cache_key, place.path)
            return found.evidence if isinstance(found, Refusal) else None
        digest = entry_files.digest(within, most)
    except opening.UnusableEntry as error:
        return f"it is {error.detail}"
    refusal = gate.judge_content(place, digest, manifests.read_unverified_records(place), is_private=False)
    if refusal is not None and refusal.reason in trust.UNATTESTED:
        return "there is no record of it that a trusted key has sealed"
    return None if refusal is None else refusal.evidence


def restore_quarantined(item: Quarantined) -> str:
    """Move ``item`` from the quarantine back to its old path, and return that path.

    Raises EntryRefusedError if a load would refuse the item again, and OSError, such as FileExistsError if the path is
    taken. In each case the item stays in the quarantine.
    """
    place = _find_place(item)
    with quarantine.open_quarantine(item.root) as directory:
        reason = _judge_item(directory, item, place)
        if place is None or reason is not None:
            raise EntryRefusedError(f"{item.name} is not restored, for it would be refused again: {reason}")
        *way, name = place.path.removeprefix(os.path.join(item.root, "")).split(os.sep)
        with folders.open_subdirectory(item.root, way, make=True) as parent:
            _link_item(item.name, directory, name, parent)
        quarantine.remove(directory, item.name)
    return place.path


def _link_item(source: str, above: Folder, name: str, parent: Folder) -> None:
    """Unlike a renaming this replaces nothing, except on a file system without hard links."""
    try:
        above.link(source, parent, name)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS or os.path.lexists(f"{parent.path}/{name}"):
            raise
        above.rename(source, parent, name)


def remove_quarantined(item: Quarantined) -> bool:
    """Delete ``item`` and its note; return False if it still exists, such as another user's. Raises OSError."""
    with quarantine.open_quarantine(item.root) as directory:
        quarantine.remove(directory, item.name)
        return not os.path.lexists(f"{directory.path}/{item.name}")


class Struck(NamedTuple):
    """``root``: the cache that it is part of; ``what``: its name; ``moment``: of the last strike, since the epoch."""

    root: str
    hash: str
    what: str
    strikes: int
    moment: float

    @property
    def state(self) -> str:
        """Outcome of the next lookup, in words."""
        if self.strikes >= strikes.BARRED:
            return "compiled at every start for 30 days"
        return "quarantined" if self.strikes >= strikes.ASIDE else "quarantined at the next crash"


def list_struck(roots: Iterable[str]) -> Iterator[Struck]:
    """Yield the keys with crash strikes in the caches ``roots``, in each the latest strike first. Raises OSError."""
    for root in roots:
        found = strikes.read(root).keys
        names = {refs.digest(kind.word, key): text for kind, key, text in _list_names(root)} if found else {}
        for hash, (number, moment) in sorted(found.items(), key=lambda each: -each[1][1]):
            yield Struck(root, hash, names.get(hash, _ELSEWHERE), number, moment)


_ELSEWHERE = "what is not in the cache: compiled ahead of time, or removed"


def _list_names(root: str) -> Iterator[tuple[Kind, str, str]]:
    for entry in layout.walk(root):
        yield entry.kind, entry.cache_key, f"{entry.kind.noun} {entry.cache_key}"
    paths = [code.path for code in layout.walk_code(root)]
    with suppress(OSError):  # it is not known then what lay there
        paths += [item.origin for item in list_quarantined([root])]
    for path in paths:
        moved = layout.locate(path)
        if moved is not None:
            yield moved.kind, moved.cache_key, f"{moved.kind.noun} {moved.cache_key}"
        for name in (path, os.path.dirname(path)):  # a library, or a kernel, which is a directory
            yield Kind.NATIVE_CODE, os.path.relpath(name, root), os.path.relpath(name, root)
