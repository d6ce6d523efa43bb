"""Who sealed the files of a group, and what the seals say of their build: read from their ends, or from their records.

A seal that is found here is genuine, and still says nothing of the bytes before it, which are not read: see audit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from safecache.code.triton_place import LIST
from safecache.files import checks, opening
from safecache.reporting.kinds import ENTRIES, Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, seal
from safecache.signing.seal import Verdict
from safecache.store import manifests
from safecache.store.groups import Group

__all__ = ["COMPARED", "SEALED", "Signature", "signatures_in"]

# What is not a Reason against a file: its seal holds; or it needs none, being compared with what is generated.
SEALED, COMPARED = "sealed", "compared"
# Bytes. Our own seals and records have some hundreds, a record of the list of a kernel's files a few thousand.
_LONGEST_SEAL, _LONGEST_RECORD = 16 << 10, 256 << 10
_SEALED = (*ENTRIES, Kind.KNOWN_BAD)
_RECORDED = (Kind.KERNEL, Kind.NATIVE_CODE, Kind.HEADER, Kind.AUTOTUNING)
_BUILT = (".so", ".o", ".gch", ".best_config")


class Signature(NamedTuple):
    """Of a file: ``state`` is SEALED, COMPARED or the value of a Reason; ``signer``: the id of a signing key, or None.

    ``provenance`` is what a seal says that holds.
    """

    path: str
    state: str
    signer: str | None = None
    provenance: Mapping[str, str] = MappingProxyType({})


def signatures_in(group: Group) -> list[Signature]:
    """Those of the group's files that carry a seal or should. None for what is gone, or bears none by its nature."""
    return list(_signatures(group))


def _signatures(group: Group) -> Iterator[Signature]:
    paths = [file.path for file in group.files if not os.path.basename(file.path).startswith(".")]
    if group.kind in _SEALED:
        yield from _each(paths, lambda path: _of_entry(path, group.kind, group.name))
    elif group.kind in _RECORDED:
        kind = Kind.NATIVE_CODE if group.kind is Kind.HEADER else group.kind
        yield from _each(_recorded(group.kind, paths), lambda path: _of_record(path, group.root, kind))


def _recorded(kind: Kind, paths: list[str]) -> list[str]:
    """Those of a group's files that say for all: a list of Triton's states what is in the others."""
    if kind is Kind.KERNEL:
        return [path for path in paths if _is_list_or_module(path)] or paths
    return [path for path in paths if path.endswith(_BUILT)] or paths[:1]


def _is_list_or_module(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(LIST) or name.endswith(".so")


def _each(paths: Iterable[str], read: Callable[[str], Verdict | None]) -> Iterator[Signature]:
    for path in paths:
        try:
            checks.check_regular(os.lstat(path))
            verdict = read(path)
        except FileNotFoundError:
            continue  # removed since it was listed
        except checks.UnusableEntry as error:
            yield Signature(path, error.reason.value)
            continue
        except OSError:
            yield Signature(path, Reason.UNREADABLE.value)
            continue
        yield Signature(path, COMPARED) if verdict is None else _signature(path, verdict)


def _signature(path: str, verdict: Verdict) -> Signature:
    signer = verdict.key_id.hex() if verdict.key_id else None
    if verdict.reason is None:
        return Signature(path, SEALED, signer, verdict.provenance or {})
    return Signature(path, verdict.reason.value, signer)


def _of_entry(path: str, kind: Kind, cache_key: str) -> Verdict:
    end, size = opening.read_end(path, checks.check_regular, _LONGEST_SEAL, flags=os.O_NOFOLLOW)
    return seal.inspect(end, size, kind, cache_key, keyring.current().find, config.current().namespace)


def _of_record(path: str, root: str, kind: Kind) -> Verdict | None:
    """None for a generated source."""
    if kind is Kind.NATIVE_CODE and not path.endswith(_BUILT):
        return None
    place = manifests.path_of(path, root, kind)
    try:
        record = opening.read_regular(place, checks.check_regular, flags=os.O_NOFOLLOW, limit=_LONGEST_RECORD)
    except (FileNotFoundError, checks.UnusableEntry):
        record = None
    return manifests.verify(record, path, kind, root)[0]
