"""The misses in a cache's journal: a line of JSON for each lookup, appended by every process that has looked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import NamedTuple

from safecache import files, store
from safecache.lookups import Layer

__all__ = ["Miss", "misses"]

_FOLDER = os.path.join(".safecache", "journal")
_TEXTS = ("key", "name", "reason", "detail", "run")
# Bytes, of a file.
_LARGEST = 64 << 20


class Miss(NamedTuple):
    """A lookup that found nothing; ``reason`` and ``detail`` in the words of the journal."""

    layer: Layer
    key: str
    name: str
    reason: str
    detail: str
    time: float
    run: str


def misses(root: str) -> list[Miss]:
    """Those in the journal of the cache ``root``, the last first; what is no line of a journal is passed over."""
    folder = os.path.join(root, _FOLDER)
    try:
        names = [name for name in store.list_entries(folder) if name.endswith(".jsonl")]
    except OSError:
        names = []
    found = [miss for name in names for miss in _in_file(os.path.join(folder, name))]
    return sorted(found, key=lambda miss: miss.time, reverse=True)


def _in_file(path: str) -> Iterator[Miss]:
    try:
        content = files.read_regular(path, store.check_regular, flags=os.O_NOFOLLOW, limit=_LARGEST)
    except (OSError, store.UnusableEntry):
        return
    for line in content.splitlines():
        try:
            said = json.loads(line)
            if said["outcome"] == "miss":
                key, name, reason, detail, run = (str(said.get(each) or "") for each in _TEXTS)
                yield Miss(Layer(said["layer"]), key, name, reason, detail, float(said["time"]), run)
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
            continue  # torn, or of another version
