"""Archives of torch.export (``.pt2``), which may hold libraries of AOTInductor's that C++ unpacks and loads.

One without libraries may hold pickles: weights, constants and sample inputs (CVE-2026-4538). Where no trusted key has
sealed it, what needs no pickle is read, and the rest refused.

The seal follows the archive: readers of zip files look for the end of the archive, and ignore what follows. It covers
all bytes before it, and no name, since packages are made to be renamed and moved.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from safecache import compiles
from safecache.built_code import generated, restricted
from safecache.entries import saving
from safecache.errors import EntryRefusedError
from safecache.fs import folders, opening, ownership, private_directory, temporaries
from safecache.places import refs
from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, provenance, seal, trust
from safecache.signing.keys import Key
from safecache.store import gate

__all__ = [
    "PACKAGES_OBEY_TMPDIR_FROM",
    "admit_program",
    "adopt",
    "build_and_seal_package",
    "name_package",
    "refuse",
    "verify_package",
]

# Endings of what a process, or the library in a package, loads from it.
CODE = (".so", ".o", *generated.ENDINGS)
_FOLDER = "/data/aotinductor/"
# Older releases of torch unpack them below /tmp, whatever TMPDIR says.
PACKAGES_OBEY_TMPDIR_FROM = (2, 13)
_COPY = "package.pt2"
_CHUNK = 1 << 20
# Bytes; ours take some hundreds.
_LONGEST_SEAL = 16 << 10


def build_and_seal_package(target: Any, sources: Iterable[tuple[str, str]], make: Callable[[Any], Any]) -> Any:
    """Call ``make`` with a path or file object, seal the package that it writes there, and return the result.

    ``target``: where the package goes. ``sources``: the files that it packs, each with the cache that holds it. A
    package with unattested code gets no seal, but a warning. Raises KeyringError in strict mode without a signing key.
    """
    if not isinstance(target, (str, os.PathLike)):
        result = make(target)
        if not target.readable():
            why, remedy = "its file object cannot be read", 'Help: open it with mode "w+b", or give a path'
            events.report(Reason.UNSEALED, "did not seal a package", why=why, cause="file object", remedy=remedy)
        elif saving.can_seal(Kind.PACKAGE):
            _seal_archive(target, "a package", sources)
            target.seek(0)
        return result
    path = os.fspath(target)
    if ownership.find_exposure(path if os.path.lexists(path) else _get_directory(path)) is None:
        result = make(target)
        _seal_file(path, path, sources)
        return result
    with private_directory.create_temporary() as directory, temporaries.reserve_temporary(path) as temporary:
        place = os.path.join(directory, os.path.basename(path))
        make(place)
        _seal_file(place, path, sources)
        shutil.copyfile(place, temporary)
        os.replace(temporary, path)
    return target


def _seal_file(place: str, path: str, sources: Iterable[tuple[str, str]]) -> None:
    if saving.can_seal(Kind.PACKAGE):
        with open(place, "r+b") as file:
            _seal_archive(file, path, sources)


def _seal_archive(file: IO[bytes], name: str, sources: Iterable[tuple[str, str]]) -> None:
    unknown = _find_unknown(file, sources)
    if unknown is None:
        file.seek(0)
        _append_seal(file, keyring.sealing_key(), provenance.make_statement(Kind.PACKAGE))
        return
    why, remedy = f"nothing attests {unknown} in it", "Help: compile and package in one process"
    events.report(Reason.UNSEALED, f"did not seal {name}", why=why, cause=name, remedy=remedy)


def _append_seal(file: IO[bytes], key: Key, origin: dict[str, str]) -> None:
    """Seal ``file`` from its current position to its end, without reading all of it into memory."""
    digest, size = _digest_rest(file)
    namespace = config.current().namespace
    file.write(seal.make_trailer(digest, size, Kind.PACKAGE, "", key, origin, namespace))


def _digest_rest(file: IO[bytes]) -> tuple[bytes, int]:
    """The SHA-256 of all bytes from the current position on, and their number."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return digest.digest(), size


def _find_unknown(file: IO[bytes], sources: Iterable[tuple[str, str]]) -> str | None:
    """The name of a packed file that others could have replaced, or of unattested code; None if all are good.

    Judges the bytes in the archive.
    """
    by_name: dict[str, list[tuple[str, str]]] = {}
    for path, root in sources:
        by_name.setdefault(os.path.basename(path), []).append((path, root))
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            candidates = by_name.get(os.path.basename(member.filename), [])
            if not candidates and not member.filename.endswith(CODE):
                continue  # written from this process's memory
            with archive.open(member) as content:
                digest, _ = _digest_rest(content)
            if not any(_is_good(path, root, digest) for path, root in candidates):
                return member.filename
    return None


def _is_good(path: str, root: str, digest: bytes) -> bool:
    if not path.endswith(CODE) and ownership.find_exposure(path) is None:
        return True
    return gate.judge_content(CodeFile(path, root), digest) is None


def _has_code(target: Any) -> bool:
    """Tell whether libraries are in this archive, as far as it can be read: their load verifies it anyway."""
    with suppress(Exception):  # of zipfile, which raises anything for malformed bytes
        with zipfile.ZipFile(target) as archive:
            found = any(_FOLDER in f"/{name}" for name in archive.namelist())
        if hasattr(target, "seek"):
            target.seek(0)
        return found
    return False


@contextmanager
def admit_program(target: Any) -> Iterator[Any]:
    """Yield where to load the archive from, in this block: verified like verified_package(), or restricted.

    One without a trusted seal and a library is restricted, by restricted. Raises as verified_package().
    """
    if restricted.is_on() or target == compiles.current.package or _is_missing(target):
        yield target
    elif not config.current().is_observing and not _has_code(target) and _is_unattested(target):
        is_path = isinstance(target, (str, os.PathLike))
        with compiles.override_scope(archive=os.fspath(target) if is_path else str(getattr(target, "name", ""))):
            yield target
    else:
        with verify_package(target) as place:
            yield place


def _is_unattested(target: Any) -> bool:
    """Tell whether no key that is known here has sealed it, and it does not pass as private either."""
    is_path = isinstance(target, (str, os.PathLike))
    try:
        if is_path:
            end, size = opening.read_end(os.path.realpath(target), opening.check_regular, _LONGEST_SEAL)
        else:
            size = target.seek(0, os.SEEK_END)
            target.seek(max(0, size - _LONGEST_SEAL))
            end = target.read()
            target.seek(0)
    except opening.UnusableEntry:
        return True
    verdict = seal.inspect(end, size, Kind.PACKAGE, "", keyring.current().find, config.current().namespace)
    return verdict.reason in trust.UNATTESTED and not (is_path and trust.is_private(os.path.realpath(target)))


def refuse(what: str) -> EntryRefusedError:
    """Return the error for ``what`` in a restricted archive, a noun: it could run code when it is loaded."""
    path = compiles.current.archive or ""
    evidence = f"{what} in it could run code of whoever made it, and no trusted key has sealed it"
    once = f"seal it once: safecache adopt {path}" if path else "save it again with safecache on"
    remedy = f"Help: if you trust its origin, {once}"
    refusal = Refusal(Reason.UNSEALED, evidence, remedy)
    return report.make_refusal_error(refusal, Kind.PACKAGE, path or "given as a file object")


@contextmanager
def verify_package(target: Any) -> Iterator[Any]:
    """Verify a package, and yield where to load it from in this block: nobody else can replace it there.

    ``target``: a path, the directory of an unpacked package, or a file object. Raises EntryRefusedError, in default
    mode too, since there is nothing to recompile; OSError if it cannot be read.
    """
    if target == compiles.current.package or _is_missing(target):
        yield target
        return
    with ExitStack() as stack:
        try:
            place = _place_package(target, lambda: stack.enter_context(private_directory.create_temporary()))
        except opening.UnusableEntry as unusable:
            raise report.make_refusal_error(unusable.refusal, Kind.PACKAGE, str(target)) from None
        with compiles.override_scope(package=place):
            yield place


def name_package(place: str) -> str:
    """Return a package's name for guarded first runs, from its end: checksums of all that is in it, and the seal.

    ``place``: where verified_package() has placed it. Raises OSError, and UnusableEntry if it is no regular file.
    """
    if os.path.isdir(place):
        return refs.name_artifact(place, "")
    end, size = opening.read_end(place, opening.check_regular, _LONGEST_SEAL)
    return refs.name_artifact(hashlib.sha256(end).hexdigest(), str(size))


def _is_missing(target: Any) -> bool:
    """Tell whether there is nothing to load, and nobody else can change that: loading it fails as in stock torch."""
    if not isinstance(target, (str, os.PathLike)) or os.path.lexists(target):
        return False
    return ownership.find_exposure(_get_directory(os.fspath(target))) is None


def _get_directory(path: str) -> str:
    return os.path.dirname(path) or "."


def _place_package(target: Any, directory: Callable[[], str]) -> str:
    """The path of the verified package: in place, or a copy in the private ``directory``."""
    if not isinstance(target, (str, os.PathLike)):
        copy = os.path.join(directory(), _COPY)
        target.seek(0)
        with open(copy, "xb") as file:
            shutil.copyfileobj(target, file)
        _check_package(copy, getattr(target, "name", "") or "given as a file object", by_seal=True)
        return copy
    path = os.path.realpath(target)  # a hub's download is a link
    if os.path.isdir(path):
        return _check_unpacked(path)
    if ownership.find_exposure(path) is None:
        _check_package(path, path, by_seal=False)
        return path
    refusal = _find_refusal_by_end(path)  # copy only sealed files: a sparse one can claim a terabyte
    if refusal is not None and not config.current().is_observing:
        raise report.make_refusal_error(refusal, Kind.PACKAGE, path)
    copy = os.path.join(directory(), _COPY)
    opening.copy_regular(path, opening.check_regular, copy)
    _check_package(copy, path, by_seal=True)
    return copy


def _check_unpacked(path: str) -> str:
    """The path of an unpacked package, which has no seal: trusted only as private, if the user allows that."""
    found = [path]
    if config.current().trust == "private":
        found += (item.path for item in folders.walk_files(path))
        found += (os.path.dirname(place) for place in found[1:])
    # A link could point to another directory by the time it is loaded.
    if len(found) == 1 or any(os.path.islink(place) or not trust.is_private(place) for place in found):
        refusal = Refusal(Reason.UNSEALED, "a directory has no seal")
        if not trust.is_observed(refusal, Kind.PACKAGE, path):
            raise report.make_refusal_error(refusal, Kind.PACKAGE, path)
    return path


def _check_package(place: str, name: object, *, by_seal: bool) -> None:
    """Raise EntryRefusedError unless the package is good. ``by_seal``: only by its seal, not as private."""
    refusal = _find_refusal(place)
    if refusal is None:
        events.count(Count.VERIFIED)
        return
    if not by_seal and refusal.reason in trust.UNATTESTED and trust.is_private(place):
        refusal = _find_contradiction(place)
        if refusal is None:
            events.count(Count.ACCEPTED_PRIVATE)
            return
    if not trust.is_observed(refusal, Kind.PACKAGE, str(name)):
        raise report.make_refusal_error(refusal, Kind.PACKAGE, str(name))


def _find_refusal(path: str) -> Refusal | None:
    return _find_refusal_by_end(path) or _find_contradiction(path)


def _find_contradiction(path: str) -> Refusal | None:
    """Return what the package's seal, if it has one, says against the content, whoever sealed it; None if nothing."""

    def digest(size: int) -> bytes:
        return opening.digest_regular(path, opening.check_regular, limit=size)

    end, size = opening.read_end(path, opening.check_regular, _LONGEST_SEAL)
    return trust.find_end_contradiction(end, size, digest, Kind.PACKAGE, "")


def _find_refusal_by_end(path: str) -> Refusal | None:
    """Return what the seal alone says against a package, whose content is not read yet; None if nothing."""
    keys = keyring.current()
    end, size = opening.read_end(path, opening.check_regular, _LONGEST_SEAL)
    verdict = seal.inspect(end, size, Kind.PACKAGE, "", keys.find, config.current().namespace)
    if verdict.reason is None:
        return trust.find_mismatch(verdict, Kind.PACKAGE)
    if verdict.reason in trust.UNATTESTED:
        return trust.make_unattested_refusal(verdict, keys, f"if you trust its origin, run safecache adopt {path}")
    return Refusal(verdict.reason, trust.explain_verdict(verdict))


def adopt(path: str) -> bool:
    """Seal the package at ``path`` with our signing key, on the user's word that it is good; False if sealed already.

    Raises EntryRefusedError if others could have written it, or it is sealed and damaged. Raises KeyringError without a
    signing key, UnusableEntry if it is not a regular file, and OSError.
    """
    key, path = keyring.sealing_key(), os.path.realpath(path)
    if _find_refusal(path) is None:
        return False
    with temporaries.reserve_temporary(path) as temporary:
        opening.copy_regular(path, opening.check_private(path), temporary)
        shutil.copymode(path, temporary)
        refusal = _find_refusal(temporary)
        if refusal is None or refusal.reason not in trust.UNATTESTED:
            raise EntryRefusedError(f"{refusal.reason.value}: {refusal.evidence}" if refusal else "replaced meanwhile")
        with open(temporary, "r+b") as file:
            _append_seal(file, key, {**provenance.make_statement(Kind.PACKAGE), "adopted": "yes"})
        os.replace(temporary, path)
    return True
