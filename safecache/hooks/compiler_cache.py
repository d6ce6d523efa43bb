"""torch.compiler._cache: entries that arrive in a mega-cache artifact are verified before they are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache import loading
from safecache.reasons import Reason
from safecache.seal import Kind

__all__ = ["populate_caches"]

_KINDS = {"aot_autograd": Kind.AOT_ENTRY, "inductor": Kind.FX_ENTRY}
_ORIGIN = "in the artifact"


def populate_caches(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """CacheArtifactManager.populate_caches: what fails verification is left out, and is not in the result."""

    def populate(artifacts: dict[str, list[Any]]) -> Any:
        with loading.reading():
            kept = {name: [a for a in found if _admit(name, a)] for name, found in artifacts.items()}
            return wrapped(kept)

    return populate(*args, **kwargs)


def _admit(name: str, artifact: Any) -> bool:
    kind = _KINDS.get(name)
    if kind is None:
        return True
    if os.path.basename(artifact.key) != artifact.key or artifact.key.startswith(".") or not artifact.key:
        evidence = f"its key {artifact.key[:64]!r} would leave the cache directory"
        loading.note(Reason.UNSAFE_NAME, kind, _ORIGIN, evidence, "Find out where the artifact came from.")
        return False
    return loading.admit(kind, artifact.key, artifact.content, origin=_ORIGIN)
