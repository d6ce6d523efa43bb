"""Compiles a graph into a cache of its own, and compares what that holds then with what was hit."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Mapping
from typing import Any

from safecache.places import layout
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.store import entry_files
from safecache.verification import comparison, graphs
from safecache.verification.comparison import Key

__all__ = ["contents", "main"]


def main(asked: int, answered: int) -> None:
    """Answer, in JSON, what is asked for. Both are files of the process that asks."""
    with os.fdopen(asked, "rb") as file, os.fdopen(answered, "wb") as answer:
        file.seek(0)
        # From the memory of the parent, which has verified the entries.
        graph, content = pickle.load(file)  # noqa: S301
        found = {(Kind[kind], key): data for (kind, key), data in content.items()}
        answer.write(json.dumps(_answer(graph, found)).encode())


def _answer(graph: bytes, found: Mapping[Key, bytes]) -> dict[str, Any]:
    try:
        graphs.recompile(graph)
    except graphs.UnverifiableError as error:
        return {"failed": str(error)}
    except Exception as error:
        return {"failed": f"it could not be compiled: {type(error).__name__}: {error}"}
    made = contents(config.cache_directory() or "")
    common = [key for key in found if key in made]
    # The first is the one that was looked up, before those that it refers to: without it, this was another compile.
    if next(iter(found)) not in made:
        return {"failed": "elsewhere it comes to another cache key"}
    return {"verdicts": [_verdict(key, found, made) for key in common]}


def contents(root: str) -> dict[Key, bytes]:
    """The entries in this cache. Raises OSError."""
    return {
        (each.kind, each.cache_key): entry_files.read_entry(each.path, entry_files.max_entry_size(each.kind))
        for each in layout.walk(root)
    }


def _verdict(key: Key, found: Mapping[Key, bytes], made: Mapping[Key, bytes]) -> dict[str, Any]:
    differences = comparison.compare(key, found, made)
    kept = base64.b64encode(made[key]).decode() if differences else ""
    return {"kind": key[0].name, "key": key[1], "differences": differences, "made": kept}
