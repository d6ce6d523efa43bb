"""Catalogue of caches for a person: groups of files by name, size and age, with who sealed them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from safecache.built_code.triton_place import LIST
from safecache.explain import key_records
from safecache.fs import folders, opening
from safecache.places.layout import LOADED, CodeFile
from safecache.reporting.kinds import Evidence, Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, seal
from safecache.signing.seal import Verdict
from safecache.store import manifests
from safecache.store.groups import Group
from safecache.upkeep import inventory

__all__ = [
    "COMPARED",
    "SEALED",
    "Catalogue",
    "Description",
    "Item",
    "KernelMetadata",
    "Known",
    "Signature",
    "describe",
    "find_keys",
    "list_items",
    "list_signatures",
    "read_unverified_kernels",
    "read_unverified_keys",
    "read_unverified_metadata",
]

# What is not a Reason against a file: its seal holds; or it needs none, being compared with what is generated.
SEALED, COMPARED = "sealed", "compared"
# Bytes. Our own seals and records have some hundreds, a record of the list of a kernel's files a few thousand.
_LONGEST_SEAL, _LONGEST_RECORD = 16 << 10, 256 << 10
_BUILT = (".so", ".o", ".gch", ".best_config")


class Signature(NamedTuple):
    """Signature of a file. ``state``: SEALED, COMPARED or the value of a Reason; ``signer``: id of a key, or None.

    ``provenance``: what a valid seal states, else empty.
    """

    path: str
    state: str
    signer: str | None = None
    provenance: Mapping[str, str] = MappingProxyType({})


def list_signatures(group: Group) -> list[Signature]:
    """Return the signatures of the group's files that have a seal or record, or should have one.

    Files that have been removed are left out. The list is empty for a kind that is never sealed.
    """
    paths = [file.path for file in group.files if not os.path.basename(file.path).startswith(".")]
    if group.kind.proof.evidence is Evidence.SEAL:
        find, namespace = keyring.current().find, config.current().namespace

        def inspect(path: str) -> Verdict:
            end, size = opening.read_end(path, opening.check_regular, _LONGEST_SEAL, flags=os.O_NOFOLLOW)
            return seal.inspect(end, size, group.kind, group.name, find, namespace)

        return list(_read_signatures(paths, inspect))
    if not group.kind.has_record:
        return []
    if group.kind is Kind.KERNEL:
        # A list of Triton's states what is in the others.
        names = {path: os.path.basename(path) for path in paths}
        stating = [path for path in paths if names[path].startswith(LIST) or path.endswith(".so")] or paths
    else:
        stating = [path for path in paths if path.endswith(_BUILT)] or paths[:1]
    kind = Kind.NATIVE_CODE if group.kind is Kind.HEADER else group.kind
    return list(_read_signatures(stating, lambda path: _verify_record(path, group.root, kind)))


def _read_signatures(paths: Iterable[str], read: Callable[[str], Verdict | None]) -> Iterator[Signature]:
    for path in paths:
        try:
            opening.check_regular(os.lstat(path))
            verdict = read(path)
        except FileNotFoundError:
            continue  # removed since it was listed
        except opening.UnusableEntry as error:
            yield Signature(path, error.reason.value)
            continue
        except OSError:
            yield Signature(path, Reason.UNREADABLE.value)
            continue
        if verdict is None:
            yield Signature(path, COMPARED)
            continue
        signer = verdict.key_id.hex() if verdict.key_id else None
        if verdict.reason is None:
            yield Signature(path, SEALED, signer, verdict.provenance or {})
        else:
            yield Signature(path, verdict.reason.value, signer)


def _verify_record(path: str, root: str, kind: Kind) -> Verdict | None:
    """Verify the record of the file at ``path``; return None for a generated source, which needs none."""
    if kind is Kind.NATIVE_CODE and not path.endswith(_BUILT):
        return None
    place = manifests.record_path(CodeFile(path, root, kind))
    try:
        record = opening.read_regular(place, opening.check_regular, flags=os.O_NOFOLLOW, limit=_LONGEST_RECORD)
    except (FileNotFoundError, opening.UnusableEntry):
        record = None
    return manifests.verify(record, CodeFile(path, root, kind))[0]


# Bytes of one file. Large entries have their graph's code, with the names of its kernels, before their constants.
_MOST_NAMES = 4 << 20
# What Inductor calls the kernels that it generates, in Triton and in C++, from what all of them have in their names:
# a pattern that begins with a choice takes ten times as long.
_FUSED = re.compile(rb"fused_[A-Za-z0-9_]{1,150}")
_BEFORE = re.compile(rb"(?<![A-Za-z0-9_])(?:triton|cpp)_(?:[a-z]{1,9}_)?\Z")
_LONGEST_BEFORE = 20
# As CppScheduling.codegen_group in torch/_inductor/codegen/cpp.py writes them; the same in torch 2.11 to 2.15.
_CPP_SOURCE = re.compile(
    rb"^(\w{1,200}) = async_compile\.cpp\w*\([^\n]{0,10000}r?\'\'\'(.*?)\'\'\'", re.MULTILINE | re.DOTALL
)
_CPP_KERNEL = re.compile(rb'^extern "C"\s.*?^\}', re.MULTILINE | re.DOTALL)
# As pickle writes a text of 52 letters: SHORT_BINUNICODE and its length.
_KEY = re.compile(rb"\x8c\x34([cf][a-z2-7]{51})")


def read_unverified_kernels(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the kernels that these files name in their first 4 MiB, by first mention. Skips unreadable files."""
    names: dict[str, None] = {}
    for content in map(_read_unverified, paths):
        for found in _FUSED.finditer(content):
            before = _BEFORE.search(content, max(0, found.start() - _LONGEST_BEFORE), found.start())
            if before is not None:
                names[(before[0] + found[0]).decode()] = None
    return tuple(names)


def read_unverified_keys(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the cache keys that these pickles name in their first 4 MiB, by first mention. Skips unreadable files."""
    return find_keys(map(_read_unverified, paths))


def find_keys(contents: Iterable[bytes]) -> tuple[str, ...]:
    """Find the cache keys in the first 4 MiB of each of these contents."""
    return tuple(dict.fromkeys(key.decode() for content in contents for key in _KEY.findall(content, 0, _MOST_NAMES)))


def _read_unverified(path: str) -> bytes:
    try:
        return opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_MOST_NAMES)
    except (OSError, opening.UnusableEntry):
        return b""


# Bytes; Triton writes one or two thousand.
_MOST = 256 << 10
_LONGEST_TEXT = 200


class KernelMetadata(NamedTuple):
    """Empty where it is not told. ``gpu``: such as ``sm_90``; ``options``: what else is said of the compile."""

    name: str
    gpu: str = ""
    triton: str = ""
    options: tuple[tuple[str, str], ...] = ()


def read_unverified_metadata(paths: Iterable[str]) -> KernelMetadata:
    """Read name, GPU and Triton version of the kernel with these files; empty where unknown or unreadable."""
    named = {os.path.basename(path): path for path in paths}
    for name in sorted(named):
        if name.startswith(LIST):
            metadata = name.removeprefix(LIST)
            fields = _read_unverified_fields(named[metadata]) if metadata in named else {}
            return _describe_kernel(metadata.removesuffix(".json"), fields)
    # A module that Triton has built for itself, such as cuda_utils, has no metadata.
    modules = [name for name in sorted(named) if name.endswith(".so")]
    return KernelMetadata(modules[0].split(".")[0] if modules else "")


def _read_unverified_fields(path: str) -> dict[str, Any]:
    try:
        content = opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_MOST)
        fields = json.loads(content)
    except (OSError, opening.UnusableEntry, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _describe_kernel(name: str, fields: dict[str, Any]) -> KernelMetadata:
    target = fields.get("target")
    target = target if isinstance(target, dict) else {}
    architecture = _cap_text(target.get("arch"))
    is_nvidia = target.get("backend") == "cuda" and architecture.isdecimal()
    options = ((option, _cap_text(fields.get(option))) for option in ("num_warps", "num_stages", "num_ctas", "shared"))
    return KernelMetadata(
        _cap_text(fields.get("name")) or name,
        f"sm_{architecture}" if is_nvidia else architecture,
        _cap_text(fields.get("triton_version")),
        tuple((option, text) for option, text in options if text),
    )


def _cap_text(value: object) -> str:
    return str(value)[:_LONGEST_TEXT] if isinstance(value, (str, int, float)) else ""


_WITH_GRAPHS = (Kind.AOT_ENTRY, Kind.FX_ENTRY, Kind.NATIVE_CODE)


class Item(NamedTuple):
    """Group of the cache ``directory``. ``made`` and ``used``: seconds since the epoch, as the file system tells.

    Each use renews the time of a file. So ``made`` is the oldest time among the files and their directory.
    """

    directory: str
    group: Group
    size: int
    made: float
    used: float


class Known(NamedTuple):
    """FX graph entries by their keys; where the records of keys lie, by key; names of C++ kernels, by their text."""

    graphs: Mapping[str, Group]
    records: Mapping[str, str]
    cpp_kernels: Mapping[bytes, str]


class Catalogue(NamedTuple):
    """Contents of caches. ``other``: number and bytes of files in no group; ``records``: paths of records by key."""

    items: list[Item]
    other: tuple[int, int]
    records: Mapping[str, str]

    @property
    def known(self) -> Known:
        """References between the items, such as from entries to graphs. Reads the generated Python in the caches."""
        of_kind = {kind: [item.group for item in self.items if item.group.kind is kind] for kind in _WITH_GRAPHS}
        sources = [path for group in of_kind[Kind.NATIVE_CODE] for path in group.paths if path.endswith(".py")]
        graphs = {group.name: group for group in of_kind[Kind.FX_ENTRY]}
        return Known(graphs, self.records, _map_cpp_kernels(sources))


class Description(NamedTuple):
    """Description of an item by its files; fields are empty where unknown.

    ``kernels``: by name. ``source``: if no kernel is named, the function or kernel in the key's record. ``gpu``: what a
    kernel is for, by its metadata, else what the build had. ``torch``, ``triton``: versions of the build, by a valid
    seal, or Triton's by the metadata. ``states``: number of files by the state of their Signature.
    """

    kernels: tuple[str, ...]
    source: str
    gpu: str
    torch: str
    triton: str
    signers: tuple[str, ...]
    states: Mapping[str, int]
    provenance: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which a user may ask for the item."""
        return (*self.kernels, self.source) if self.source else self.kernels

    @property
    def name(self) -> str:
        """The first of its names, and how many more there are."""
        more = f" (+{len(self.names) - 1})" if len(self.names) > 1 else ""
        return f"{self.names[0]}{more}" if self.names else ""


def list_items(directories: Iterable[str], kinds: Collection[Kind]) -> Catalogue:
    """Return the items of these ``kinds`` in these cache directories. Raises OSError if one cannot be read."""
    items, files, size = [], 0, 0
    records: dict[str, str] = {}
    for directory in directories:
        found = inventory.take_inventory(directory)
        items += [_make_item(directory, group) for group in found.groups if group.kind in kinds]
        files += len(found.other)
        size += sum(file.size for file in found.other)
        kept = (group for group in found.groups if group.kind is Kind.KEY_RECORD)
        records.update((key_records.parse_key(file.path), file.path) for group in kept for file in group.files)
    return Catalogue(items, (files, size), records)


def _make_item(directory: str, group: Group) -> Item:
    stamps = group.stamps
    made = [file.modified for file in group.all_files] or stamps
    # That of a directory changes with what is added to it, not with what is used.
    if len(group.paths) == 1 and group.files and group.files[0].path != group.paths[0]:
        made = [*made, folders.get_mtime(group.paths[0]) or made[0]]
    return Item(directory, group, group.size, min(made, default=0.0), max(stamps, default=0.0))


def describe(item: Item, known: Known) -> Description | None:
    """Describe ``item`` by its current files; None if they are gone. ``known``: that property of its Catalogue."""
    group = item.group
    if not any(folders.is_there(path) for path in group.paths or [file.path for file in group.all_files]):
        return None
    seals = list_signatures(group)
    provenance = next((seal.provenance for seal in seals if seal.provenance), {})
    metadata = KernelMetadata("")
    kernels: tuple[str, ...] = ()
    if group.kind is Kind.KERNEL:
        metadata = read_unverified_metadata(file.path for file in group.files)
        kernels = (metadata.name,) if metadata.name else ()
    elif group.kind in _WITH_GRAPHS:
        kernels = _find_kernels(group, known)
    return Description(
        kernels,
        "" if kernels else _name_source(group, known.records),
        metadata.gpu or provenance.get("gpu", ""),
        provenance.get("torch", ""),
        provenance.get("triton", "") or metadata.triton,
        tuple(dict.fromkeys(seal.signer for seal in seals if seal.signer)),
        Counter(seal.state for seal in seals),
        provenance,
    )


def _name_source(group: Group, records: Mapping[str, str]) -> str:
    if any(path.endswith(LOADED) for path in group.paths):
        return "probe of vector instructions"
    path = records.get(group.name)
    record = key_records.read_unverified(path) if path is not None else None
    return key_records.cap_text(record.name) if record is not None else ""


def _find_kernels(group: Group, known: Known) -> tuple[str, ...]:
    """Return the kernels that the group's bytes name, or else those of its AOT entry's graphs or of its C++."""
    paths = [file.path for file in group.files]
    found = read_unverified_kernels(paths)
    if found or group.kind is Kind.FX_ENTRY:
        return found
    if group.kind is Kind.AOT_ENTRY:
        graphs = known.graphs
        return read_unverified_kernels(
            file.path for key in read_unverified_keys(paths) if key in graphs for file in graphs[key].files
        )
    texts = [text for path in paths if path.endswith(".cpp") for text in _CPP_KERNEL.findall(_read_unverified(path))]
    return tuple(known.cpp_kernels[text] for text in texts if text in known.cpp_kernels)


def _map_cpp_kernels(sources: Iterable[str]) -> dict[bytes, str]:
    """Map the text of each C++ kernel to its name in the generated Python files ``sources``.

    The C++ file itself has no name for the kernel: the function is always ``kernel``.
    """
    named = {}
    for content in map(_read_unverified, sources):
        for name, code in _CPP_SOURCE.findall(content):
            named.update(dict.fromkeys(_CPP_KERNEL.findall(code), name.decode()))
    return named
