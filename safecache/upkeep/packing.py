"""Packs as a person makes and uses them: caches into one file, and out of it again; two compared, and several joined.

Nothing is packed that does not verify here, and nothing unpacked before all of the pack has: then each group, as its
reader would. What is in a cache already, and verifies, stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

from safecache.code import vllm_files
from safecache.files import folders, temporaries
from safecache.packs import archive
from safecache.packs.archive import Pack
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import File
from safecache.reporting.kinds import ENTRIES
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.store import bundles, entry_files, wire
from safecache.store.wire import INDUCTOR, TRITON, VLLM, Packed
from safecache.upkeep import inventory, preflight, transfers
from safecache.upkeep.transfers import Fate, Step, Summary, Targets, Tell

__all__ = ["Difference", "compared", "pack", "unpack"]

_CHUNK = 1 << 20


class Difference(NamedTuple):
    """Of one group: its name, and the files that only the first has, that only the second has, and that differ."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    both: tuple[str, ...]


class _Group(NamedTuple):
    """One of a cache or of a pack: how its files are read, none of them if they do not verify."""

    ref: Ref
    read: Callable[[], tuple[File, ...]]


def pack(sources: Sequence[str], out: str, tell: Tell) -> Summary:
    """Make the pack ``out`` of these cache directories and packs; of groups of the same name, the first that verifies.

    Entries of one key are joined. Raises KeyringError without a key to seal it, PackRefusedError for a pack among the
    sources that is not used, and OSError; what was at ``out`` is then left as it was.
    """
    keyring.sealing_key()
    named: dict[str, list[_Group]] = {}
    for source in sources:
        for group in _groups(source):
            named.setdefault(wire.name_bundle(group.ref), []).append(group)
    tell(len(named), None)
    made, stated = list[Packed](), _Stated()
    directory = os.path.dirname(os.path.abspath(out))
    with contextlib.suppress(OSError), folders.open_subdirectory(directory) as folder:  # it cannot be listed
        temporaries.reap(folder, only_ours=True)
    with tempfile.TemporaryFile(dir=directory) as spool:
        add = partial(_add, spool, made, stated)
        summary = transfers.summarized(add, sorted(named.items()), tell, threads=1)
        spool.seek(0)
        said = {"made_with": stated.made_with(), "baked": preflight.joined(map(_baked, sources))}
        entry_files.write_stream(out, _parts(archive.beginning(made, said), spool), durably=True)
    return summary


def _baked(source: str) -> Mapping[str, Any]:
    """What it was made with, as preflight compares that. Raises PackRefusedError, and OSError."""
    if config.is_pack(source):
        baked: Mapping[str, Any] = archive.opened(source).manifest.get("baked", {})
        return baked
    return preflight.collected(directory for _, directory in _caches(os.path.realpath(source)))


def _parts(beginning: bytes, spool: IO[bytes]) -> Iterator[bytes]:
    yield beginning
    yield from iter(partial(spool.read, _CHUNK), b"")
    yield archive.end()


class _Stated:
    """What the seals of what is packed say that it was made for: GPUs, and CPU instructions."""

    def __init__(self) -> None:
        self._gpus, self._instructions = set[str](), set[str]()

    def add(self, file: File) -> None:
        stated = seal.stated_provenance(file.record if file.record is not None else file.content)
        self._gpus.update(filter(None, stated.get("gpu", "").split(",")))
        self._instructions.update(stated.get("cpu", "").split())

    def made_with(self) -> dict[str, str]:
        """With that, the releases that are installed here: what verifies was made with them."""
        here = provenance.describe()
        servers = {name: version for name in preflight.SERVERS if (version := provenance.installed(name))}
        stated = {"gpu": ",".join(sorted(self._gpus)), "cpu": " ".join(sorted(self._instructions))}
        return {**here, **servers, **stated}


def _add(spool: IO[bytes], made: list[Packed], stated: _Stated, item: tuple[str, list[_Group]]) -> Step:
    """Write the group of this name, of those that are called so, and note it."""
    name, groups = item
    files = _joined(groups)
    if not files:
        return Step(name, Fate.REFUSED, 0, "nothing of it verifies: safecache verify")
    for file in files:
        stated.add(file)
    frame, packed = wire.compress(groups[0].ref, files, archive.LEVEL)
    spool.write(frame)
    made.append(packed)
    return Step(name, Fate.DONE, packed.stored)


def _joined(groups: Iterable[_Group]) -> tuple[File, ...]:
    found: dict[str, File] = {}
    for group in groups:
        for file in group.read():
            found.setdefault(file.name, file)
        if found and group.ref.kind not in ENTRIES:
            break
    return tuple(found.values())


def _groups(source: str) -> Iterator[_Group]:
    """Those of a pack or of a cache directory. Raises PackRefusedError, and OSError."""
    if config.is_pack(source):
        found = archive.opened(source)
        for packed in found.groups:
            yield _Group(packed.ref, partial(_verified, found, packed))
        return
    for root, directory in _caches(os.path.realpath(source)):
        config.name_cache(directory)
        lying = vllm_files.bundles_in(directory) if root == VLLM else inventory.bundles_in(directory)
        for ref in lying:
            below = os.path.relpath(ref.root, directory)
            where = root if below == os.curdir else f"{root}/{below}"
            placed = ref._replace(root=where)
            if wire.is_placed(placed):
                yield _Group(placed, partial(bundles.read_verified_files, ref))


def _verified(found: Pack, packed: Packed) -> tuple[File, ...]:
    files = found.read(packed)
    return () if bundles.bundle_refusal(files, packed.ref) else files


def _caches(directory: str) -> Iterator[tuple[str, str]]:
    """The caches that a directory is, or has if it is vLLM's, each with what it is called in a pack. Raises OSError."""
    below = os.path.join(directory, layout.VLLM_FOLDER)
    top = below if os.path.isdir(below) else directory
    nested = list(layout.vllm_caches(top))
    if nested or os.path.basename(top) == layout.VLLM_FOLDER:
        yield VLLM, top
        yield from ((f"{VLLM}/{os.path.relpath(cache, top)}", cache) for cache in nested)
    elif os.path.basename(directory) != layout.HEADERS_FOLDER:
        yield (TRITON if _is_tritons(directory) else INDUCTOR), directory


def _is_tritons(directory: str) -> bool:
    """Whether it is Triton's own cache: Inductor's has no keys of Triton's at its top, or other folders too."""
    names = folders.names_in(directory)
    is_inductors = any(name in _INDUCTORS or layout.CODE_FOLDER.fullmatch(name) for name in names)
    return not is_inductors and any(layout.TRITON_KEY.fullmatch(name) for name in names)


_INDUCTORS = (layout.AOT_FOLDER, layout.FX_FOLDER, layout.TRITON_FOLDER, layout.DYNAMO_FOLDER)


def unpack(path: str, targets: Targets, tell: Tell) -> Summary:
    """Have in these caches what the pack has and they lack. One that was cut short goes on when it is done again.

    Raises PackRefusedError, and OSError, before a file is written.
    """
    found = archive.opened(path)
    for packed in found.groups:
        found.check(packed)
    # These alone: on the way from there to a cache in them no link is followed.
    for place in (targets.inductor, targets.triton, targets.vllm):
        config.name_cache(place)
    tell(len(found.groups), None)
    items = [(packed.name, packed) for packed in found.groups]
    return transfers.summarized(partial(_unpack, found, targets), items, tell)


def _unpack(found: Pack, targets: Targets, item: tuple[str, Packed]) -> Step:
    name, packed = item
    ref = packed.ref._replace(root=targets.of(packed.ref.root))
    here = {file.name for file in _here(ref)}
    if here and (ref.kind not in ENTRIES or here.issuperset(packed.files)):
        return Step(name, Fate.THERE)
    files = found.read(packed)
    refusal = bundles.bundle_refusal(files, ref)
    if refusal is not None:
        return Step(name, Fate.REFUSED, 0, refusal.evidence)
    lacking = [file for file in files if file.name not in here]
    if not bundles.publish(lacking, ref, f"the pack {found.path}"):
        return Step(name, Fate.FAILED, 0, f"it cannot be written to {ref.directory}")
    return Step(name, Fate.DONE, packed.stored)


def _here(ref: Ref) -> tuple[File, ...]:
    try:
        return bundles.read_verified_files(ref)
    except OSError:
        return ()  # writing it says what is wrong with that


def compared(first: str, second: str) -> Iterator[Difference]:
    """What differs between two packs or cache directories, group by group. Raises PackRefusedError, and OSError."""
    ours, theirs = _contents(first), _contents(second)
    for name in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(name, {}), theirs.get(name, {})
        both = tuple(sorted(file for file in one.keys() & other.keys() if one[file] != other[file]))
        difference = Difference(name, _only(one, other), _only(other, one), both)
        if any(difference[1:]):
            yield difference


def _only(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> tuple[str, ...]:
    return tuple(sorted(one.keys() - other.keys()))


def _contents(source: str) -> dict[str, dict[str, bytes]]:
    """The digests of the files that verify, by the names of their groups."""
    found: dict[str, dict[str, bytes]] = {}
    for group in _groups(source):
        files = {file.name: hashlib.sha256(file.content).digest() for file in group.read()}
        name = wire.name_bundle(group.ref)
        found[name] = {**files, **found.get(name, {})}
    return found
