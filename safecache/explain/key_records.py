"""Records of what cache keys were made of, one for each saved key, to explain later why another missed.

A record is written after a compile, never on the way to a hit. Records are not sealed, since no entry is used or
refused by them. The compile time in a record bounds how long another process waits for the next compile, within
SAFECACHE_WAIT. A file that is no valid record is skipped. A record holds digests, and text that is short and gives no
secret away.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from safecache.fs import folders, opening
from safecache.places import layout, metadata
from safecache.places.refs import Ref
from safecache.reporting.kinds import LOOKED_UP, Kind, Reason
from safecache.settings import units
from safecache.store import entry_files
from safecache.tiers import fallback, levels

__all__ = [
    "Component",
    "KeyRecord",
    "cap_text",
    "digest",
    "find_absence_reason",
    "list_names",
    "list_records",
    "list_same_name",
    "make_component",
    "mask_environment",
    "mask_setting",
    "mask_variable",
    "parse_key",
    "read_unverified",
    "recall",
    "remember",
]

_LONGEST = 300
_DIGITS = 16
_UNSHOWN = "(not shown)"
# Variables that torch, Triton and vLLM read; and others from Triton's own list of those that enter its keys.
_THEIRS = re.compile(r"(PY)?TORCH|TRITON|(AOT_?)?INDUCTOR|VLLM_")
_OF_TRITON = re.compile(r"LLVM_|MLIR_|AMDGCN_|DISABLE_|NVPTX_|ALLOW_|PTXAS_")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|AUTH(?!OR|GRAD)|REDIS_URL", re.IGNORECASE)


def digest(content: str | bytes) -> str:
    """Enough of a SHA-256 to tell two parts of two keys apart."""
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def cap_text(text: str) -> str:
    """Shorten ``text`` to what a person reads: 300 characters."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def mask_variable(name: str, value: str) -> str:
    """The value of an environment variable, unless another program owns it or its name suggests a secret."""
    is_theirs = _THEIRS.match(name) or _OF_TRITON.match(name)
    return mask_setting(name, value) if is_theirs else _UNSHOWN


def mask_setting(name: str, value: str) -> str:
    """The value of a setting that a program lists as its own, unless its name suggests a secret."""
    return _UNSHOWN if _SECRET.search(name) else cap_text(value)


def mask_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The ``variables`` that can determine a setting of torch, Triton or vLLM, with secrets masked."""
    return {name: mask_variable(name, value) for name, value in sorted(variables.items()) if _THEIRS.match(name)}


# Records kept for one name: a kernel that is tuned has as many keys as configurations.
_MOST_OF_A_NAME = 32
# Bytes of an uncompressed record. Nearly all are settings, which compress to a fifth.
_LARGEST = 512 << 10
_GZIP = zlib.MAX_WBITS + 16
_SUFFIX = ".json.gz"
# How many files a search through all names reads at most.
_MOST_READ = 2000
# Does not match the nonce that torch uses where it cannot compute a key.
_KEY = re.compile(r"[a-z2-7]{52}|[A-Z2-7]{52}")
_FORMAT = 1
_KINDS = {kind.word: kind for kind in LOOKED_UP}


class Component(NamedTuple):
    """A part of a key: its name as a person would put it, its digest, and its value as text."""

    name: str
    digest: str
    text: str


def make_component(name: str, text: str) -> Component:
    """A part whose value is this text, stored shortened; the digest covers all of it."""
    return Component(name, digest(text), cap_text(text))


class KeyRecord(NamedTuple):
    """Record of one key. ``name``: what stays the same when the key differs, such as the function.

    ``first``, ``made``: when it was first and last saved, in seconds since the epoch. ``process``: an id shared by the
    records of one process and its forks. ``took``: the seconds between the last miss and that save.
    """

    kind: Kind
    key: str
    name: str
    made: float
    components: tuple[Component, ...]
    first: float = 0.0
    process: str = ""
    took: float = 0.0


def remember(record: KeyRecord, root: str) -> None:
    """Write the record of a key that has just been saved in the cache ``root``, after a miss at ``made``.

    Below a local tier it is written to the shared tier too, as the entry was. A record that another process wrote
    since the miss stays: that entry was not evicted, it did not exist yet. Raises OSError, in strict mode
    CacheWriteError.
    """
    if not _KEY.fullmatch(record.key):
        return
    file, now = record.key + _SUFFIX, time.time()
    earlier = recall(Ref(record.kind, record.key, root), record.name)
    if earlier is not None and earlier.made >= record.made:
        return
    took = max(0.0, now - record.made)
    content = _encode_record(record._replace(made=now, first=earlier.first if earlier else now, took=took))
    if content is None:
        return
    level = levels.find(root)
    is_shared = level is not None and not levels.is_left_alone(level.shared, reading=False)
    for cache in (root, level.find_counterpart(root)) if level is not None and is_shared else (root,):
        place = _locate_place(record.kind, record.name, cache)
        entry_files.publish(os.path.join(place, file), content, cache)
        _remove_oldest(place, cache)


def recall(ref: Ref, name: str) -> KeyRecord | None:
    """Return the record of the key of ``ref`` under ``name``, from its cache or a lower tier; None if there is none."""
    found = filter(None, (read_unverified(os.path.join(place, ref.key + _SUFFIX)) for place in _list_places(ref, name)))
    return next((each for each in found if (each.kind, each.name) == (ref.kind, name)), None)


def list_same_name(ref: Ref, name: str) -> list[KeyRecord]:
    """The records of all keys of its kind under this name, in its cache and the tiers below that, the latest first."""
    paths = (os.path.join(place, file) for place in _list_places(ref, name) for file in _list_files(place))
    found = filter(None, map(read_unverified, paths))
    return _sort_records(record for record in found if (record.kind, record.name) == (ref.kind, name))


def find_absence_reason(ref: Ref, name: str) -> Reason:
    """EVICTED: this key was saved here once; KEY_DIFFERS: another one was under the same name."""
    names = {file for place in _list_places(ref, name) for file in _list_files(place)}
    if ref.key + _SUFFIX in names:
        return Reason.EVICTED
    return Reason.KEY_DIFFERS if names else Reason.NEVER_SEEN


def list_records(root: str, kind: Kind | None = None) -> list[KeyRecord]:
    """Return the records of the cache ``root``, all or of one ``kind``, the latest first.

    Reads the shared tier below a local one too, but no read-only tiers; and at most the latest 2000 files.
    """
    own = metadata.make_path(root, metadata.KEYS)
    shared = levels.find_counterpart(own)
    tops = [own, *(below for below, _ in fallback.iter_lower_paths(own, root) if below == shared)]
    above = [os.path.join(top, each.word) for top in tops for each in (LOOKED_UP if kind is None else (kind,))]
    places = [os.path.join(directory, folder) for directory in above for folder in list_names(directory)]
    paths = [os.path.join(place, name) for place in places for name in _list_files(place)]
    latest = sorted(paths, key=folders.get_mtime, reverse=True)[:_MOST_READ]
    return _sort_records(filter(None, map(read_unverified, latest)))


def _sort_records(records: Iterable[KeyRecord]) -> list[KeyRecord]:
    """Keep the first record of each key, which is of the nearest tier, and sort them by time, the latest first."""
    found: dict[tuple[Kind, str], KeyRecord] = {}
    for record in records:
        found.setdefault((record.kind, record.key), record)
    return sorted(found.values(), key=lambda record: record.made, reverse=True)


def parse_key(path: str) -> str:
    """Return the cache key whose record is stored at ``path``."""
    return os.path.basename(path).removesuffix(_SUFFIX)


def read_unverified(path: str) -> KeyRecord | None:
    """Return the record at ``path``; None if it is unreadable, or not of the key in the file's name."""
    try:
        content = opening.read_regular(path, opening.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST + 1)
        record = _decode_record(json.loads(zlib.decompressobj(_GZIP).decompress(content, _LARGEST)))
    except (OSError, opening.UnusableEntry, zlib.error, ValueError, TypeError, KeyError, RecursionError):
        return None  # gone, not ours, or of another version: nothing to learn from it
    return record if record is not None and record.key + _SUFFIX == os.path.basename(path) else None


def _list_places(ref: Ref, name: str) -> Iterable[str]:
    place = _locate_place(ref.kind, name, ref.root)
    return [place, *(below for below, _ in fallback.iter_lower_paths(place, ref.root))]


def _locate_place(kind: Kind, name: str, root: str) -> str:
    return metadata.make_path(root, metadata.KEYS, kind.word, digest(name))


def _list_files(place: str) -> list[str]:
    return [name for name in list_names(place) if name.endswith(_SUFFIX)]


def list_names(place: str) -> list[str]:
    """The names in a directory, but for hidden ones; none where it cannot be read."""
    try:
        return layout.list_entries(place)
    except OSError:
        return []  # an unreadable directory explains nothing


def _encode_record(record: KeyRecord) -> bytes | None:
    """The compressed record; None if it is too large even without the text of the source lines."""
    without_lines = tuple(c._replace(text="") if c.name.endswith(" line") else c for c in record.components)
    for components in (record.components, without_lines):
        stated = {"layer": record.kind.word, **record._replace(components=components)._asdict(), "format": _FORMAT}
        del stated["kind"]
        content = json.dumps(stated, separators=(",", ":")).encode()
        if len(content) <= _LARGEST:
            packer = zlib.compressobj(level=1, wbits=_GZIP)
            return packer.compress(content) + packer.flush()
    return None


def _decode_record(stated: Any) -> KeyRecord | None:
    """Raises ValueError, TypeError or KeyError for what is not a record; None for another format."""
    if stated["format"] != _FORMAT:
        return None
    components = tuple(Component(*map(str, each)) for each in stated["components"])
    key, name, process = (str(stated[each]) for each in ("key", "name", "process"))
    made, first, took = (units.check_time(stated.get(each, 0.0)) for each in ("made", "first", "took"))
    return KeyRecord(_KINDS[stated["layer"]], key, name, made, components, first, process, took)


def _remove_oldest(place: str, root: str) -> None:
    """Reduce the records to _MOST_OF_A_NAME. A file that only has the name of a record is not ours to remove."""
    paths = [os.path.join(place, name) for name in _list_files(place)]
    if len(paths) > _MOST_OF_A_NAME:
        for path in sorted(paths, key=folders.get_mtime)[:-_MOST_OF_A_NAME]:
            # Suppressed: another process removed it, it is another user's, or the path goes through a link.
            with suppress(OSError), folders.open_parent(root, path) as (folder, name):
                if read_unverified(path) is not None:
                    folder.unlink(name)
