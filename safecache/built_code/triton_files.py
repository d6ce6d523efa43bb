"""Triton's cache: files are published whole, a kernel's list of files after them, and none makes a compile fail.

A file that cannot be kept is read from a private copy, and one that cannot be read is recompiled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

from safecache import compiles
from safecache.built_code import triton_place
from safecache.built_code.triton_place import LIST, Place
from safecache.errors import SafecacheError
from safecache.fs import filesystem, ownership
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.ports import Admitted, Requested, plugs, tell
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import keyring
from safecache.store import attestations, bundles, directories, entry_files, gate, manifests
from safecache.tiers import directory_faults, levels

__all__ = [
    "accept",
    "attest",
    "current_write",
    "dump",
    "find_attested",
    "find_binary",
    "get_file",
    "get_group",
    "kernel_scope",
    "make_record",
    "put",
    "restore",
    "write_private_copy",
]


_CONSEQUENCE = "Other processes will recompile it."
_Result = TypeVar("_Result")
# What a list's record states besides its own digest: {"files": those of its group}.
_Stated = Mapping[str, Mapping[str, str | None]]


class KernelWrite:
    """Keep what this thread writes to Triton's cache: until a list attests it, and until Triton has read it back.

    Triton reads back by name what it has just written. A network file system can fail at that, though the file is
    published, or somebody may have cleared the cache: the bytes then come from memory.
    """

    def __init__(self) -> None:
        # Lists that were missing, by path: what this thread compiles ends with them.
        self.lists: set[str] = set()
        # SHA-256 digests by path; None for a file that was not kept. And those that no record attests so far.
        self.digests: dict[str, bytes | None] = {}
        self.owed: dict[str, bytes] = {}
        # Bytes by the path to read them at.
        self._contents: dict[str, bytes] = {}
        # Whether a directory is out of others' reach, which takes a dozen system calls.
        self._is_private: dict[str, bool] = {}

    def is_list_awaited(self, file: CodeFile) -> bool:
        """Tell whether the record of a list still to come will attest this file; if not, it needs one of its own.

        Not where another process has written that list meanwhile: until ours replaces it, it states another file.
        """
        listed = manifests.find_list(CodeFile(file.path, kind=file.kind))
        return listed is not None and listed in self.lists and not os.path.lexists(listed)

    def attest(self, file: CodeFile, digest: bytes, stated: _Stated, *, is_awaited: bool) -> bool:
        """Attest the file here, and by a record, unless that of its group's list ``is_awaited``; as attest_file()."""
        if is_awaited:
            attestations.attest_in_process(file.path, digest=digest)
            self.owed[file.path] = digest
        elif not gate.attest_file(file, also=stated, digest=digest):
            return False
        for name in stated.get("files", ()):
            self.owed.pop(os.path.join(os.path.dirname(file.path), name), None)
        return True

    def add(self, file: CodeFile, content: bytes, digest: bytes | None, readable: str) -> None:
        """Remember that the file can be read at ``readable``; ``digest``: its SHA-256, None if it was not kept."""
        self.digests[file.path] = digest
        if digest is None:
            self.owed.pop(file.path, None)
        if not readable.endswith(".so"):  # Triton does not read that back with its group
            self._contents[readable] = content

    def private_path(self, file: CodeFile, content: bytes, *, is_kept: bool) -> str:
        """Find the path as gate.make_private_path() does, but ask once about a directory."""
        directory = os.path.dirname(file.path)
        if is_kept and directory not in self._is_private:
            self._is_private[directory] = ownership.find_exposure(directory) is None
        with suppress(OSError):  # as if it were not private: somebody has cleared the cache
            if is_kept and self._is_private[directory] and ownership.is_own(filesystem.lstat(file.path)):
                return file.path
        return gate.make_private_path(file, content, is_kept=is_kept)

    def read_back(self, construct: Callable[[Mapping[str, str]], _Result], group: Mapping[str, str]) -> _Result:
        """``construct(group)``, which reads the group's files; from private copies if one cannot be read again.

        Raises what ``construct`` does, such as OSError for a file of another writer.
        """
        contents, self._contents = self._contents, {}
        try:
            return filesystem.retry(lambda: construct(group), filesystem.GONE)
        except OSError as error:
            failed = None if error.filename is None else os.fspath(error.filename)
            if failed not in contents:
                raise
            text, why, remedy = (
                f"could not read kernel file {failed} again",
                f"{error.strerror}",
                "Using its bytes in memory.",
            )
            cause = f"{error.errno} read again"
            events.report(Reason.UNREADABLE, text, why=why, cause=cause, remedy=remedy, error=error)

        def find_copy(path: str) -> str:
            known = contents.get(path)
            file = CodeFile(path, kind=Kind.KERNEL)
            return path if known is None else gate.make_private_path(file, known, is_kept=False)

        return construct({name: find_copy(path) for name, path in group.items()})


def current_write() -> KernelWrite:
    """Return the KernelWrite of this thread's compiling() block; outside of one, a new one that nobody keeps."""
    return compiles.current.kernel_write or KernelWrite()


@contextmanager
def kernel_scope() -> Iterator[None]:
    """Attest the files of a kernel that this block compiles by the record of their list, once the list is written.

    Without a list, as after an error, each file gets a record of its own at the end.
    """
    write = KernelWrite()
    try:
        with compiles.override_scope(kernel_write=write):
            yield
    finally:
        for path, digest in write.owed.items():
            with suppress(SafecacheError):  # of strict mode: the compile's own error comes first
                gate.attest_file(Place(os.path.dirname(path)).name_file(path), digest=digest)


def put(directory: str, name: str, content: bytes) -> str:
    """Write a kernel's file that this process has made, attest it, and return the path to read it from.

    That is a private copy if the file could not be written, which is reported, or if others could replace it. A list is
    not written without its files. Raises OSError if there is no place for the copy either; CacheWriteError in strict
    mode.
    """
    readable, stated = _keep_file(Place(directory), name, content)
    if stated is not None:
        _send_kernel(Place(directory), name, content, stated)
    return readable


def _keep_file(place: Place, name: str, content: bytes) -> tuple[str, _Stated | None]:
    """The path to read it from, and what its record states, None if it was not kept."""
    write, file, digest = current_write(), place.name_file(name), hashlib.sha256(content).digest()
    stated = _state_digests(place, content) if name.startswith(LIST) else {}
    if stated is None:
        return file.path, None
    is_awaited = not stated and write.is_list_awaited(file)
    kept = (
        not levels.is_left_alone(place.root, reading=False)
        and write.attest(file, digest, stated, is_awaited=is_awaited)
        and _publish_file(file.path, content, place.root)
    )
    if not kept and not config.current().strict and directory_faults.is_unwritable(place.root):
        levels.leave_alone(place.root, reading=False)  # or each file would fail, and be counted, by itself
    readable = write.private_path(file, content, is_kept=kept)
    write.add(file, content, digest if kept else None, readable)
    return readable, stated if kept else None


def attest(directory: str, name: str, content: bytes, write: Callable[[], str]) -> str:
    """Attest the file that ``write``, of a user's cache manager, writes; return the path to read it from.

    Like put(), but ``write`` returns where the file is, and that is not changed. Raises what ``write`` raises.
    """
    place = Place(directory)
    file = place.name_file(name)
    stated = _state_digests(place, content) if name.startswith(LIST) else {}
    kept = stated is not None and gate.attest_file(file, content, stated)
    written = write()
    if written != file.path or stated is None:
        return written
    readable = gate.make_private_path(file, content, is_kept=kept)
    current_write().add(file, content, hashlib.sha256(content).digest() if kept else None, readable)
    if kept:
        _send_kernel(place, name, content, stated)
    return readable


def _send_kernel(place: Place, name: str, content: bytes, stated: _Stated) -> None:
    """Send a library, or with its list a whole group, to the remote, and to the shared tier below this cache."""
    if not name.startswith(LIST) and not name.endswith(".so"):
        return
    plugs.tiers.keep(place.ref)
    directory = levels.find_counterpart(place.directory)
    if directory is None:
        return
    if not name.startswith(LIST):
        directories.propagate_file(place.name_file(name))
        return
    names = triton_place.parse_names(content) or ()
    if all(directories.propagate_file(place.name_file(file)) for file in names):
        # With the files' paths there, as stock Triton needs them.
        listing = _make_listing({file: os.path.join(directory, file) for file in names})
        record = manifests.make_record(CodeFile(place.name_path(name), kind=Kind.KERNEL), listing, stated)
        directories.send_content(place.name_file(name), listing, record=record)


def _make_listing(paths: Mapping[str, str]) -> bytes:
    return json.dumps({"child_paths": paths}).encode()


def _state_digests(place: Place, content: bytes) -> _Stated | None:
    """Return what the record of a list states besides its digest; None if one of its files was not kept."""
    digests = {name: _digest_file(place, name) for name in triton_place.parse_names(content) or ()}
    return {"files": digests} if all(digests.values()) else None


def _digest_file(place: Place, name: str) -> str | None:
    path, written = place.name_path(name), current_write().digests
    if path in written:
        digest = written[path]
        return None if digest is None else digest.hex()
    content = place.read_unverified(path) if place.take(name) is not None else None
    return None if content is None or not attestations.is_known(path, content) else hashlib.sha256(content).hexdigest()


def _publish_file(path: str, content: bytes, root: str) -> bool:
    try:
        entry_files.publish(path, content, root)
    except OSError as error:
        report.fail_write(f"write {Kind.KERNEL.noun} {path}", error, _CONSEQUENCE, root, "TRITON_CACHE_DIR")
        return False
    layout.reap_once(os.path.dirname(path))
    return True


def write_private_copy(file: CodeFile, name: str, content: bytes, error: OSError) -> str:
    """Report that a file or its record cannot be kept or read; return the path of a private copy. Raises OSError.

    ``name``: of the file, for the report. ``error``: what has failed. Raises the reason's error in strict mode.
    """
    if isinstance(error, directory_faults.Unsettled):
        report.refuse(Refusal(Reason.UNREADABLE, error.evidence), Kind.KERNEL, name, triton_place.REMEDY, error=error)
    else:
        report.fail_write(f"write {Kind.KERNEL.noun} {name}", error, _CONSEQUENCE, "", "TRITON_CACHE_DIR")
    return gate.make_private_path(file, content, is_kept=False)


def dump(directory: str, name: str, content: bytes) -> str:
    """Write a file for people to read; return its path. A failure is reported; strict mode raises CacheWriteError."""
    path = os.path.join(directory, name)

    def write() -> None:
        os.makedirs(directory, exist_ok=True)
        entry_files.replace(path, content)

    try:
        filesystem.retry(write, filesystem.GONE)
    except OSError as error:
        report.fail_write(f"write the dump {path}", error, _CONSEQUENCE, os.path.dirname(directory), "TRITON_DUMP_DIR")
    return path


def find_attested(directory: str, names: Iterable[str]) -> list[str]:
    """Return those of a new group's ``names`` that are in ``directory``, attested or written by this thread.

    With TRITON_ALWAYS_COMPILE the others may be in a lower tier.
    """
    place, written = Place(directory), current_write().digests
    return [name for name in names if place.name_path(name) in written or place.take(name) is not None]


# Where the file is that an entry brought for a path.
_aside: Part[dict[str, str]] = Part(dict, inherit)


def restore(directory: str, contents: Mapping[str, bytes]) -> None:
    """Ensure that files of these names are in ``directory``: keep attested ones, and write ``contents`` otherwise.

    Nothing is written if a lower tier has them all, as where the cache cannot be written. A file that cannot be written
    is reported, and errors raised, as in put(); binary() finds its private copy.
    """
    place = Place(directory)
    tell(Admitted(directory))
    for lower in _iter_lower_places(directory):
        is_shared = lower.directory == levels.find_counterpart(directory)
        if not is_shared and not os.path.isdir(directory) and _has_attested(lower, contents):
            return
    with compiles.override_scope(kernel_write=KernelWrite()):
        for name in sorted(contents, key=lambda name: name.startswith(LIST)):
            path = place.name_path(name)
            attestations.attest_in_process(path, contents[name])
            is_there = os.path.lexists(path) and place.is_attested(path)
            # SAFECACHE=observe changes nothing there.
            if not is_there or not (keyring.has_stopped() or _has_record(path, place.root)):
                readable, _ = _keep_file(place, name, contents[name])
                if readable != path:
                    _aside.now[path] = readable


def _has_record(path: str, root: str) -> bool:
    """Tell whether somebody has kept a file of that name, or its group; that says nothing about what is in it."""
    listed = manifests.find_list(CodeFile(path, kind=Kind.KERNEL))
    return any(
        manifests.has_record_file(CodeFile(each, root, Kind.KERNEL)) for each in (listed, path) if each is not None
    )


def _has_attested(place: Place, contents: Mapping[str, bytes]) -> bool:
    """Tell whether each file is there and attested, by these ``contents`` of its entry too. Reports nothing."""
    for name, content in contents.items():
        path = place.name_path(name)
        if not os.path.lexists(path):
            return False
        attestations.attest_in_process(path, content)
        if not gate.is_attested(place.name_file(path)):
            return False
    return True


def find_binary(path: str, content: bytes | None) -> str | None:
    """Return where to load the kernel's binary from that torch expects at ``path``; None if no attested one is found.

    That may be in a lower tier, or a private copy. ``content``: the binary that came with its kernel, as the last
    resort.
    """
    directory, name = os.path.split(path)
    place = Place(directory)
    if os.path.lexists(path) and place.is_attested(path):
        return path  # who loads it asks whether somebody could replace it
    below = next(filter(None, (lower.take(name) for lower in _iter_lower_places(directory))), None)
    aside = _aside.now.get(path)
    found = below or (aside if aside is not None and os.path.exists(aside) else None)  # it may have been removed
    if found is not None or content is None:
        return found
    if os.path.lexists(path):  # as was reported: it is refused and cannot be moved, or its record cannot be read
        return gate.make_private_path(place.name_file(path), content, is_kept=False)
    readable, _ = _keep_file(place, name, content)
    return readable


def make_record(directory: str, name: str, content: bytes) -> bytes | None:
    """The record of a file that this process is about to keep; None without a key to seal it, or without its files."""
    place = Place(directory)
    stated = _state_digests(place, content) if name.startswith(LIST) else {}
    return None if stated is None else manifests.make_record(place.name_file(name), content, stated)


def accept(directory: str, name: str, content: bytes, record: bytes | None, *, is_listed: bool = False) -> str:
    """Keep a verified file that came from elsewhere, with its record if that attests it; the path to read it at.

    ``is_listed``: the record of its group's list attests it, in the cache too. Raises OSError if there is no place for
    a copy either.
    """
    place = Place(directory)
    file = place.name_file(name)
    if record is not None:
        what = f"the record of {file.kind.noun} {file.path}"
        recorded = manifests.publish(manifests.record_path(file), record, file.root, what, file.kind)
    else:
        recorded = is_listed or gate.attest_file(file, content)
    attestations.attest_in_process(file.path, content)
    kept = recorded and _publish_file(file.path, content, file.root)
    return gate.make_private_path(file, content, is_kept=kept)


def get_file(directory: str, name: str) -> str | None:
    """Return the path to read the file ``name`` at; None unless it is attested in the cache or in a lower tier."""
    return _look_up(directory, lambda place: place.take(name))[1]


def get_group(directory: str, name: str) -> dict[str, str] | None:
    """Return the paths to read the files of the group ``name`` at, by file name; None is a miss.

    A hit has all files, attested, and of one writer. A group of a lower tier is copied into the cache if that can be
    written: torch looks there for the binary, and for what it bundles. Raises the reason's error in strict mode.
    """
    refusal = plugs.load_guard.find_refusal(Place(directory).ref, "")
    if refusal is not None:
        report.refuse(refusal, Kind.KERNEL, directory, "Recompiling.")
        place, found = Place(directory), None
    else:
        place, found = _look_up(directory, lambda place: place.take_group(name))
    if found is None:
        current_write().lists.add(os.path.join(directory, LIST + name))
        return None
    if place.is_fetched:
        _rewrite_list(place, LIST + name, found)
    return found


def _look_up(directory: str, get: Callable[[Place], _Result | None]) -> tuple[Place, _Result | None]:
    """Call ``get`` with this directory of a kernel, or else with where a lower tier has it; return both."""
    place = Place(directory)
    ref = place.ref
    tell(Requested(ref))
    found = get(place)
    below = bundles.fetch(ref) if found is None else None
    if below is not None:
        place = Place(below.directory, is_layer=below != ref, is_fetched=below == ref)
        found = get(place)
    return place, found


def _iter_lower_places(directory: str) -> Iterator[Place]:
    ref = Place(directory).ref
    return (Place(ref._replace(root=root).directory, is_layer=True) for root in directories.iter_lower_caches(ref))


def _rewrite_list(place: Place, name: str, files: Iterable[str]) -> None:
    """Make a copied list name its files where they lie now, as stock Triton needs, if our signing key sealed it."""
    signing = keyring.current().signing
    try:
        verdict, _ = manifests.read(place.name_file(name))
    except directory_faults.Unreadable:
        return
    if signing is not None and verdict.key_id == signing.id:
        _keep_file(place, name, _make_listing({file: place.name_path(file) for file in files}))
