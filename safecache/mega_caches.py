"""What arrives in a mega-cache artifact is verified before torch writes it into the caches."""

from __future__ import annotations

import os
from typing import Any

from safecache import artifacts, loading
from safecache.seal import Kind

__all__ = ["admitted"]

# What torch unpickles later. Of the rest, only the names can hurt.
_SEALED = {
    "aot_autograd": Kind.AOT_ENTRY,
    "inductor": Kind.FX_ENTRY,
    "precompile": Kind.DYNAMO_PACKAGE,
    "pgo": Kind.PGO_STATE,
}
_ORIGIN = "in the artifact"


def admitted(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Of the artifacts of each type those that may be written; the others are reported."""
    return {name: [artifact for artifact in each if _admit(name, artifact)] for name, each in found.items()}


def _admit(name: str, artifact: Any) -> bool:
    key: str = artifact.key
    kind = _SEALED.get(name)
    if kind is None:
        kind = Kind.AUTOTUNING if name == "autotune" else Kind.OTHER
        safe = _is_autotuning_key(key) if kind is Kind.AUTOTUNING else _is_inside(key)
        return artifacts.accept_name(kind, key, _ORIGIN, safe=safe)
    # The key of a profile is a job's name, of which torch makes a plain file name by itself.
    safe = artifacts.is_plain(key) or (kind is Kind.PGO_STATE and "\0" not in key)
    if not artifacts.accept_name(kind, key, _ORIGIN, safe=safe):
        return False
    return loading.admit(kind, key, artifact.content, origin=_ORIGIN)


def _is_autotuning_key(key: str) -> bool:
    folder, _, name = key.partition("/")
    return artifacts.is_plain(folder) and artifacts.is_autotuning_name(name)


def _is_inside(key: str) -> bool:
    return all(artifacts.is_plain(part) for part in key.split(os.sep))
