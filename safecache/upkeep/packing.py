"""Packs as a person makes and uses them: caches into one file, and out of it again; two compare, and several joined.

Nothing is packed that does not verify here, and nothing unpacked before all of the pack has: then each bundle, as its
reader would.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

from safecache.explain import baked as of_records
from safecache.fs import folders, opening, temporaries
from safecache.packs import archive
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import Bundle, File
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.settings import config
from safecache.settings.settings import is_pack
from safecache.signing import keyring, provenance, seal
from safecache.store import bundles, entry_files, wire
from safecache.store.groups import Group
from safecache.store.wire import Packed
from safecache.upkeep import catalogue, copies, inventory
from safecache.upkeep.catalogue import Signature
from safecache.upkeep.copies import Directory, Fate, Listing, Remote, Source, Step, Summary, Tell

__all__ = [
    "SERVERS",
    "Difference",
    "collect",
    "compare",
    "find_caches",
    "join",
    "open_source",
    "pack",
]

_CHUNK = 1 << 20
_BUILD = ("machine", "torch", "triton", "python", "gpu")
_LONGEST_SEAL = 16 << 10
SERVERS = ("vllm", "sglang")


def find_caches(directory: str) -> list[str]:
    """Return the caches in ``directory``, such as an unpacked pack or vLLM's, or else ``directory``. Raises OSError."""
    parts = [os.path.join(directory, name) for name in ("inductor", layout.TRITON_FOLDER)]
    if os.path.isdir(parts[0]):
        return [part for part in parts if os.path.isdir(part)]
    return list(layout.find_vllm_caches(directory)) or [directory]


def collect(directories: Iterable[str]) -> dict[str, Any]:
    """Describe in JSON's types what the caches in ``directories`` were made with, without host, user and secrets.

    The same caches give the same result. ``components``: what keys were made of; ``signers``: ids of the sealing keys;
    ``namespaces``; ``builds``: versions that valid seals state; ``refused``: number of files without a valid seal, by
    reason; ``groups``: their number. Raises OSError.
    """
    roots = list(dict.fromkeys(map(os.path.realpath, directories)))
    groups = [group for root in roots for group in inventory.take_inventory(root).groups if group.kind.upkeep.is_warmed]
    signatures = [(group.kind, each) for group in groups for each in catalogue.list_signatures(group)]
    holding = [(kind, each) for kind, each in signatures if each.state == catalogue.SEALED]
    others = [each for _, each in signatures if each.state not in (catalogue.SEALED, catalogue.COMPARED)]
    foreign = _read_unverified_namespaces(groups, others)
    return {
        "groups": len(groups),
        "signers": sorted({each.signer for _, each in signatures if each.signer}),
        "namespaces": sorted({*foreign, *([config.current().namespace] if holding else [])}),
        "refused": dict(sorted(Counter(each.state for each in others).items())),
        "builds": {name: _list_values(name, holding) for name in (*_BUILD, "cpu")},
        "components": of_records.summarise_keys(roots),
    }


def _read_unverified_namespaces(groups: Iterable[Group], others: Iterable[Signature]) -> set[str]:
    """Return the namespaces, unlike this process's, for which entries state that they are sealed."""
    kinds = {file.path: group.kind for group in groups for file in group.files}
    foreign = [each.path for each in others if each.state == Reason.OTHER_NAMESPACE.value]
    found = set()
    for path in foreign:
        if kinds.get(path) in ENTRIES:
            end = opening.read_end(path, opening.check_regular, _LONGEST_SEAL, flags=os.O_NOFOLLOW)
            found.add(seal.stated_namespace(*end) or "unknown")
    return found


def _list_values(name: str, holding: Iterable[tuple[Kind, Signature]]) -> list[str]:
    """Return the values of ``name`` in the provenance of valid seals. A kernel's torch does not count."""
    values = (each.provenance.get(name, "") for kind, each in holding if not (kind is Kind.KERNEL and name == "torch"))
    return sorted({value for value in values if value})


def join(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge what was collected of several caches and packs. ``refused`` is emptied: a pack holds no refused file."""
    found: Any = {}
    for part in parts:
        found = _join_values(found, part) if found else dict(part)
    return {**found, "refused": {}}


def _join_values(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {
            name: _join_values(one[name], other[name]) if name in one and name in other else {**one, **other}[name]
            for name in sorted({*one, *other})
        }
    if isinstance(one, list):
        return sorted({*one, *other})
    return one + other if isinstance(one, int) else one


class Difference(NamedTuple):
    """Difference of the bundle ``name``: files only in the first place, only in the second, and that differ."""

    name: str
    a: list[str]
    b: list[str]
    differ: list[str]


class _Pack:
    """A pack as a source."""

    def __init__(self, path: str) -> None:
        self.file = archive.open_pack(path)
        self._packed = {packed.ref: packed for packed in self.file.groups}

    def list_bundles(self) -> Iterator[Listing]:
        for packed in self.file.groups:
            yield Listing(packed.ref, packed.files.keys())

    def read(self, listing: Listing) -> Bundle:
        files = self.file.read(self._packed[listing.ref])
        refusal = bundles.judge_bundle(files, listing.ref)
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

    def make_parts(self, baked: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the pack; its manifest says that it was made with what is installed here: what verifies was."""
        servers = {name: version for name in SERVERS if (version := provenance.find_version(name))}
        target = {"gpu": ",".join(sorted(self._gpus)), "cpu": " ".join(sorted(self._instructions))}
        made_with = {**provenance.describe(), **servers, **target}
        yield archive.make_first_frame(self._made, {"made_with": made_with, "baked": baked})
        self._spool.seek(0)
        yield from iter(partial(self._spool.read, _CHUNK), b"")
        yield archive.make_last_frame()


def _make_source(place: str) -> _Pack | Remote | Directory:
    """Raises PackRefusedError, and OSError."""
    if config.is_url(place):
        return Remote.locate(place)
    return _Pack(place) if is_pack(place) else Directory(place)


def open_source(place: str) -> Source:
    """Open a pack, a remote by its URL, or a cache directory as the source of a copy.

    Checks all of a pack first. Raises PackRefusedError, ConfigError for a remote whose library is missing, and OSError.
    """
    found = _make_source(place)
    if isinstance(found, _Pack):
        for packed in found.file.groups:
            found.file.check(packed)
    return found


def pack(sources: Sequence[str], out: str, tell: Tell) -> Summary:
    """Write the pack ``out`` from cache directories, packs and remotes. ``tell``: as in copies.copy().

    Raises KeyringError without a key to seal it, PackRefusedError for a pack among ``sources`` that is refused, and
    OSError. The file ``out`` then stays as it was.
    """
    keyring.sealing_key()
    places = [_make_source(path) for path in sources]
    directory = os.path.dirname(os.path.abspath(out))
    with contextlib.suppress(OSError), folders.open_subdirectory(directory) as folder:  # it cannot be listed
        temporaries.reap(folder, only_ours=True)
    with tempfile.TemporaryFile(dir=directory) as spool:
        made = _NewPack(spool)
        summary = copies.copy(places, made, tell, threads=1)
        entry_files.write_stream(out, made.make_parts(join(map(_collect_baked, places))), durably=True)
    return summary


def _collect_baked(place: _Pack | Remote | Directory) -> Mapping[str, Any]:
    """Return what collect() tells of ``place``: as stored for a pack, empty for a remote. Raises OSError."""
    if isinstance(place, _Pack):
        baked: Mapping[str, Any] = place.file.manifest.get("baked", {})
        return baked
    return collect(directory for _, directory in (place.find_caches() if isinstance(place, Directory) else ()))


def compare(first: str, second: str) -> Iterator[Difference]:
    """Yield the bundles that differ between two packs or cache directories. Raises PackRefusedError and OSError."""
    ours, theirs = _digest_contents(_make_source(first)), _digest_contents(_make_source(second))
    for ref in sorted(ours.keys() | theirs.keys(), key=wire.name_bundle):
        one, other = ours.get(ref, {}), theirs.get(ref, {})
        both = sorted(file for file in one.keys() & other.keys() if one[file] != other[file])
        difference = Difference(wire.name_bundle(ref), sorted(one.keys() - other), sorted(other.keys() - one), both)
        if any(difference[1:]):
            yield difference


def _digest_contents(place: Source) -> dict[Ref, dict[str, bytes]]:
    """The digests of the files that verify."""
    found = {}
    for listing in place.list_bundles():
        bundle = place.read(listing)
        files = () if bundle.refusal is not None else bundle.files
        found[listing.ref] = {file.name: hashlib.sha256(file.content).digest() for file in files}
    return found
