"""Packs as a person makes and uses them: caches into one file, and out of it again; two compared, and several joined.

Nothing is packed that does not verify here, and nothing unpacked before all of the pack has: then each bundle, as its
reader would.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

from safecache.files import folders, temporaries
from safecache.packs import archive
from safecache.places.refs import Ref
from safecache.ports import Bundle, File
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.store import bundles, entry_files, wire
from safecache.store.wire import Packed
from safecache.upkeep import copies, preflight
from safecache.upkeep.copies import Caches, Directory, Fate, Listing, Source, Step, Summary, Tell
from safecache.upkeep.remote_contents import Remote

__all__ = ["Difference", "compared", "open_source", "pack", "unpack"]

_CHUNK = 1 << 20


class Difference(NamedTuple):
    """Of one bundle: its name, and the files that only the first has, that only the second has, and that differ."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    both: tuple[str, ...]


class _Pack:
    """A pack as a source."""

    def __init__(self, path: str) -> None:
        self.file = archive.opened(path)
        self._packed = {packed.ref: packed for packed in self.file.groups}

    def listings(self) -> Iterator[Listing]:
        for packed in self.file.groups:
            yield Listing(packed.ref, packed.files.keys())

    def read(self, listing: Listing) -> Bundle:
        files = self.file.read(self._packed[listing.ref])
        refusal = bundles.bundle_refusal(files, listing.ref)
        return Bundle(listing.ref, files, f"the pack {self.file.path}", refusal=refusal)


class _NewPack:
    """A pack that is made, bundle by bundle: as it is being filled, in ``spool``."""

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool, self._made = spool, list[Packed]()
        self._gpus, self._instructions = set[str](), set[str]()

    def find_complete(self, _: Collection[Listing]) -> tuple[Ref, ...]:
        return ()

    def write(self, bundle: Bundle, *, again: bool) -> Step:  # noqa: ARG002
        for file in bundle.files:
            self._note_target(file)
        frame, packed = wire.compress(bundle.ref, bundle.files, archive.LEVEL)
        self._spool.write(frame)
        self._made.append(packed)
        return Step(packed.name, Fate.DONE, packed.stored)

    def _note_target(self, file: File) -> None:
        """Note which GPUs and CPU instructions the seal says that it was made for."""
        stated = seal.stated_provenance(file.record if file.record is not None else file.content)
        self._gpus.update(filter(None, stated.get("gpu", "").split(",")))
        self._instructions.update(stated.get("cpu", "").split())

    def parts(self, baked: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the pack; its manifest says that it was made with what is installed here: what verifies was."""
        servers = {name: version for name in preflight.SERVERS if (version := provenance.installed(name))}
        target = {"gpu": ",".join(sorted(self._gpus)), "cpu": " ".join(sorted(self._instructions))}
        made_with = {**provenance.describe(), **servers, **target}
        yield archive.beginning(self._made, {"made_with": made_with, "baked": baked})
        self._spool.seek(0)
        yield from iter(partial(self._spool.read, _CHUNK), b"")
        yield archive.end()


def _source(place: str) -> _Pack | Remote | Directory:
    """Raises PackRefusedError, and OSError."""
    if config.is_url(place):
        return Remote.locate(place)
    return _Pack(place) if config.is_pack(place) else Directory(place)


def open_source(place: str) -> Source:
    """Return a pack, a remote by its URL, or a cache directory, to be copied from.

    Raises PackRefusedError, before anything is copied of a pack that was altered, and OSError.
    """
    found = _source(place)
    if isinstance(found, _Pack):
        for packed in found.file.groups:
            found.file.check(packed)
    return found


def pack(sources: Sequence[str], out: str, tell: Tell) -> Summary:
    """Make the pack ``out`` of these cache directories and packs.

    Raises KeyringError without a key to seal it, PackRefusedError for a pack among the sources that is not used, and
    OSError; what was at ``out`` is then left as it was.
    """
    keyring.sealing_key()
    places = [_source(path) for path in sources]
    directory = os.path.dirname(os.path.abspath(out))
    with contextlib.suppress(OSError), folders.open_subdirectory(directory) as folder:  # it cannot be listed
        temporaries.reap(folder, only_ours=True)
    with tempfile.TemporaryFile(dir=directory) as spool:
        made = _NewPack(spool)
        summary = copies.copy(places, made, tell, threads=1)
        entry_files.write_stream(out, made.parts(preflight.joined(map(_baked, places))), durably=True)
    return summary


def _baked(place: _Pack | Remote | Directory) -> Mapping[str, Any]:
    """What it was made with, as preflight compares that: of a remote nothing is known. Raises OSError."""
    if isinstance(place, _Pack):
        baked: Mapping[str, Any] = place.file.manifest.get("baked", {})
        return baked
    return preflight.collected(directory for _, directory in (place.caches() if isinstance(place, Directory) else ()))


def unpack(path: str, caches: Caches, tell: Tell) -> Summary:
    """Copy what the pack has to these caches. Raises PackRefusedError, and OSError, before a file is written."""
    return copies.copy([open_source(path)], caches, tell)


def compared(first: str, second: str) -> Iterator[Difference]:
    """What differs between two packs or cache directories, bundle by bundle. Raises PackRefusedError, and OSError."""
    ours, theirs = _contents(_source(first)), _contents(_source(second))
    for ref in sorted(ours.keys() | theirs.keys(), key=wire.name_bundle):
        one, other = ours.get(ref, {}), theirs.get(ref, {})
        both = tuple(sorted(file for file in one.keys() & other.keys() if one[file] != other[file]))
        difference = Difference(wire.name_bundle(ref), _only(one, other), _only(other, one), both)
        if any(difference[1:]):
            yield difference


def _only(one: Mapping[str, bytes], other: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(one.keys() - other))


def _contents(place: Source) -> dict[Ref, dict[str, bytes]]:
    """The digests of the files that verify."""
    found = {}
    for listing in place.listings():
        bundle = place.read(listing)
        files = () if bundle.refusal is not None else bundle.files
        found[listing.ref] = {file.name: hashlib.sha256(file.content).digest() for file in files}
    return found
