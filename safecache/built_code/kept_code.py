"""Code that other packages compile into caches of their own: Inductor's cache has a copy, and so each tier can."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from safecache.built_code import sources
from safecache.errors import MissError
from safecache.fs import folders, opening
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.places.refs import Ref
from safecache.ports import plugs
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.store import bundles, directories, entry_files, gate, manifests

__all__ = [
    "HEADERS",
    "discard",
    "fetch",
    "fetch_library",
    "find_groups",
    "find_libraries",
    "forbid_miss",
    "keep",
    "keep_content",
    "keep_library",
    "locate",
    "name_group",
    "name_library",
]

# SGLang's list of all files that a library was built from, beside it.
HEADERS = "sgl_deps.json"

_MODE = 0o777


def locate(key: str, ending: str, root: str = "") -> Ref:
    """Return the ref in ``root``, by default Inductor's cache, of a copy: ``key`` names all that decides about it."""
    name = "c" + layout.name_entry(os.fsencode(key))
    cache = root or layout.inductor_cache_dir(config.get_environment())
    return Ref(Kind.NATIVE_CODE, f"{name[1:3]}/{name}{ending}", cache)


def fetch(
    ref: Ref, objection: Callable[[Mapping[str, Any]], Refusal | None] = lambda _: None
) -> tuple[bytes, Mapping[str, Any]] | None:
    """Return the verified bytes of a kept copy, and what its record states; None if no cache and no tier has one.

    ``objection``: returns why a copy with such a record is no use, or None. Raises the reason's error in strict mode.
    """
    is_here = False
    with suppress(OSError):  # one that cannot be read or moved away is passed over
        is_here = os.path.lexists(ref.path) and gate.accept_or_quarantine(ref.name_file(os.path.basename(ref.path)))
    found = ref if is_here else bundles.fetch(ref)
    if found is None:
        return None
    file, stated = found.name_file(os.path.basename(found.path)), dict[str, Any]()
    try:
        content = entry_files.read_unverified(file.path, entry_files.max_entry_size(file.kind))
        records = [*manifests.read_unverified_records(file)]
    except (OSError, opening.UnusableEntry):
        return None  # it was removed or replaced since

    def note(found: Mapping[str, Any]) -> Refusal | None:
        stated.update(found)
        return objection(found)

    digest = hashlib.sha256(content).digest()
    refusal = gate.judge_content(file, digest, records, is_private=False, objection=note)
    return (content, stated) if refusal is None else None


def forbid_miss(what: str) -> None:
    """Raise MissError if SAFECACHE_STRICT=misses=1 forbids compiling ``what``, which no cache has."""
    if config.current().must_hit:
        text = (
            f"safecache: no cache has {what}, compiled from the same sources in the same way, and"
            " SAFECACHE_STRICT=misses=1 forbids compiling. Help: warm the cache with the same code, settings and"
            " environment; or unset SAFECACHE_STRICT"
        )
        events.raise_strict(MissError(text))


def keep(ref: Ref, path: str, digest: bytes, also: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Copy the file at ``path`` to Inductor's cache and the tiers, under ``ref``, if it still has this SHA-256 digest.

    ``also``: what the record of the copy states besides. A failure to read or write is reported. Raises CacheWriteError
    for that in strict mode.
    """
    try:
        try:
            content = entry_files.read_unverified(path, entry_files.max_entry_size(ref.kind))
        except opening.UnusableEntry as unusable:
            raise OSError(errno.EINVAL, str(unusable), path) from unusable
        if hashlib.sha256(content).digest() == digest:
            keep_content(ref, content, also)
    except OSError as error:
        report.fail_write(f"copy {path} to {ref.path}", error, "Other hosts compile it themselves.", ref.root)


def keep_content(ref: Ref, content: bytes, also: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Have Inductor's cache, and the tiers, hold this content under ``ref``. Raises OSError."""
    file = ref.name_file(os.path.basename(ref.path))
    gate.attest_file(file, content, also)
    entry_files.publish(file.path, content, file.root, _MODE)
    directories.send_content(file, content, record=manifests.read_unverified_record(file), mode=_MODE)
    plugs.tiers.keep(ref, again=True)


def name_library(path: str | os.PathLike[str]) -> CodeFile:
    """Return SGLang's library as a CodeFile named after both directories above it: they state all it is built of."""
    path = os.path.abspath(path)
    root = os.path.dirname(os.path.dirname(path))
    return CodeFile(path, root, name=os.path.relpath(path, os.path.dirname(root)))


def _locate_library(scope: str) -> Ref:
    """Return the ref of the copy of the library that SGLang builds in a directory of ``scope``.

    Its path ends in the target, the module and a hash of all that SGLang knows before the build.
    """
    return locate("/".join(["sglang", *scope.split(os.sep)[-3:]]), ".so")


def fetch_library(scope: str, name: str) -> bool:
    """Publish the kept copy of SGLang's library where SGLang looks for it; return False if nothing was published.

    ``scope``: SGLang's directory for one target and module. ``name``: the library's file name. SGLang itself then finds
    out whether the library was built from the current headers. Raises the reason's error in strict mode.
    """
    found = fetch(_locate_library(scope))
    if found is None:
        return False
    content, stated = found
    leaf = os.path.join(scope, stated["leaf"])
    library, headers = name_library(os.path.join(leaf, name)), os.path.join(leaf, HEADERS)
    if os.path.lexists(library.path) and sources.read_unverified_text(headers) == stated["headers"]:
        return False
    try:
        gate.attest_file(library, content)
        entry_files.publish(library.path, content, scope, _MODE)
        # Last, since SGLang passes over a directory without it.
        entry_files.publish(headers, stated["headers"].encode(), scope)
    except OSError:
        return False  # SGLang's own library cannot be written either, which is reported
    return True


def keep_library(path: str, digest: bytes) -> None:
    """Copy SGLang's library at ``path`` to Inductor's cache and the tiers, with the list of what it was built from.

    Does nothing without that list. ``digest``: its SHA-256. Failures are as in keep().
    """
    leaf = os.path.dirname(path)
    headers = sources.read_unverified_text(os.path.join(leaf, HEADERS))
    if headers is not None:
        stated = {"leaf": os.path.basename(leaf), "headers": headers}
        keep(_locate_library(os.path.dirname(leaf)), path, digest, stated)


def find_libraries(root: str) -> Iterator[CodeFile]:
    """Yield the libraries that SGLang has published below ``root``, not verified."""
    for directory, _, names in os.walk(root):
        if HEADERS in names:
            yield from (name_library(os.path.join(directory, name)) for name in names if name.endswith(".so"))


def name_group(directory: str, digests: Mapping[str, bytes]) -> tuple[CodeFile, bytes]:
    """Return the file that one record attests a group of files by, and the group's digest.

    ``directory``: where a package has published them, ``<root>/<folder>/<key>``, or stages them,
    ``<key>_<pid>_<nonce>``. ``digests``: their SHA-256 by name. The record is named by these too: of processes that
    compile at once, one publishes, while each attests its own before. So no record replaces another's.
    """
    stated = json.dumps({name: digests[name].hex() for name in sorted(digests)})
    digest = hashlib.sha256(stated.encode()).digest()
    above, name = os.path.split(directory)
    key = name.partition("_")[0]
    return CodeFile(directory, os.path.dirname(above), name=f"{key}/{digest.hex()}"), digest


def find_groups(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each directory that TileLang has published below ``root``, and the names of the files that it uses."""
    for directory, _, names in os.walk(root):
        folder, key = os.path.split(directory)
        kind = os.path.basename(folder)
        if len(key) == 64 and kind in ("kernels", "autotuner"):
            yield directory, [name for name in names if not name.startswith(".")]
        elif len(key) == 64 and kind.endswith("-binaries"):
            yield directory, [name for name in names if name.startswith("kernel.")]


def discard(directory: str) -> None:
    """Remove ``directory``, which a package has published, as far as possible. No link below its parent is followed."""
    with suppress(OSError), folders.open_subdirectory(os.path.dirname(directory)) as parent:
        parent.remove(os.path.basename(directory))
