"""Artifacts: whole files and blobs that torch unpickles by itself, verified before they reach it.

Unlike entries of the two caches they have no name derived from their content, so only their seal makes them trusted.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from safecache import compiles
from safecache.entries import loading
from safecache.entries.loading import RemoteCache
from safecache.errors import EntryRefusedError, RefusedArtifactError
from safecache.places import refs
from safecache.places.refs import Ref
from safecache.ports import plugs
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.reporting.report import Refusal
from safecache.settings import config
from safecache.signing import keyring, seal
from safecache.store import bundles

__all__ = [
    "VerifiedRemote",
    "accept_name",
    "find_load_refusal",
    "is_autotuning_name",
    "is_plain",
    "name_graph",
    "raise_on_refusal",
    "read",
    "read_sealed_provenance",
    "report_as",
    "require",
    "require_not_crashed",
    "unpack_scope",
    "unpickle",
]

_AUTOTUNING_NAME = re.compile(r"[A-Za-z0-9_-]+\.best_config")


@contextmanager
def report_as(where: str, *, is_unguarded: bool = False) -> Iterator[None]:
    """Name in reports, for this block, where the bytes come from that this thread passes to require().

    ``is_unguarded``: no guards are evaluated for what is loaded, so that an exception may be due to arguments.
    """
    with compiles.override_scope(origin=where, is_unguarded=is_unguarded):
        yield


@contextmanager
def raise_on_refusal() -> Iterator[None]:
    """Raise EntryRefusedErrors of this block as RefusedArtifactError: the program has named the artifact."""
    try:
        yield
    except RefusedArtifactError:
        raise
    except EntryRefusedError as error:
        raise events.replace_strict_error(error, RefusedArtifactError(*error.args)) from error.__cause__


def require(kind: Kind, content: bytes, cache_key: str = "") -> None:
    """Check that ``content`` may be unpickled. If not, report it and raise RefusedArtifactError in every mode.

    For artifacts that cannot miss: there is no graph to compile instead. ``cache_key``: what its seal must state.
    """
    with raise_on_refusal(), events.propagate_strict():
        if not loading.accept_or_quarantine(
            Ref(kind, cache_key), content, origin=compiles.current.origin or "given as bytes"
        ):
            raise RefusedArtifactError(f"safecache: {events.list_refusals()[-1]} Compile it anew.")


@contextmanager
def unpack_scope(bundle: Any) -> Iterator[None]:
    """Name, for name_graph() in this block, the AOTAutograd entry that this thread loads, by its compile times."""
    with compiles.override_scope(which=f"{bundle.forward_time_taken_ns} {bundle.backward_time_taken_ns}"):
        yield


def name_graph(code: str) -> str:
    """Return the name of the graph with this code in the artifact that this thread loads, or "" outside of one."""
    return refs.name_artifact(code, compiles.current.which) if compiles.current.which is not None else ""


def find_load_refusal(bundle: Any, root: str) -> Refusal | None:
    """Return why no graph of an AOTAutograd entry is to be run, by what the cache ``root`` knows; else None."""
    graphs = [getattr(getattr(bundle, name, None), "result", None) for name in ("compiled_fw", "compiled_bw")]
    codes = list(filter(None, (getattr(graph, "source_code", None) for graph in graphs)))
    if not codes:
        return None
    with unpack_scope(bundle):
        names = [name_graph(code) for code in codes]
    ref = Ref(Kind.AOT_GRAPH, "", root)
    return next(filter(None, (plugs.load_guard.find_refusal(ref, name) for name in names)), None)


def require_not_crashed(kind: Kind, name: str, root: str) -> None:
    """Raise RefusedArtifactError, in every mode, if processes have died of the artifact of this name.

    ``root``: the cache that knows.
    """
    refusal = plugs.load_guard.find_refusal(Ref(kind, "", root), name)
    if refusal is not None:
        where, remedy = compiles.current.origin or "given as bytes", "Compile it anew."
        with raise_on_refusal(), events.propagate_strict():
            report.refuse(refusal, kind, where, remedy)
            raise RefusedArtifactError(f"safecache: {events.list_refusals()[-1]} {remedy}")


def read(ref: Ref, path: str) -> bytes | None:
    """Return the bytes of the file at ``path`` if they may be unpickled; None, and report it, if not.

    Empty if there is no file. One that is bad for everybody is quarantined if it is stored in a cache, ``ref.root``; a
    user's own stays. One that only a lower tier has is copied to ``path``. Strict mode raises the reason's error.
    """
    if not os.path.lexists(path):
        here = ref._replace(root=ref.root or config.cache_directory() or os.path.dirname(path))
        # A user's own file is in no tier.
        if here.path != path or bundles.fetch(here) != here:
            return b""
        ref = here
    content = loading.read_unverified(ref.kind, path)
    if content is None or not loading.accept_or_quarantine(ref, content, origin=path):
        return None
    return content


def read_sealed_provenance(kind: Kind, cache_key: str, content: bytes) -> Mapping[str, str]:
    """Return the provenance in the seal of bytes that read() has verified; empty without a valid seal."""
    namespace = config.current().namespace
    verdict = seal.inspect(content, len(content), kind, cache_key, keyring.current().find, namespace)
    return verdict.provenance or {}


def unpickle(content: bytes, loads: Callable[[], Any]) -> Any:
    """Return what ``loads`` returns. Raise EntryRefusedError for other bytes than this thread's Compile has pinned.

    Torch reads the verified file again by itself. Only the first call is checked: what it unpickles in turn came with
    it.
    """
    pinned, compiles.current.pinned = compiles.current.pinned, None
    if pinned is not None and content != pinned[1]:
        # Torch catches the error, and goes on as if there were no file.
        with events.propagate_strict():
            refusal = Refusal(Reason.DAMAGED, "it was replaced while it was read", "Find out by whom.")
            report.refuse(refusal, pinned[0], "on disk")
            raise EntryRefusedError(f"safecache: {events.list_refusals()[-1]}")
    return loads()


class VerifiedRemote:
    """Wrapper of a remote cache that only returns values that may be unpickled."""

    def __init__(self, remote: RemoteCache, kind: Kind) -> None:
        self._remote = remote
        self._kind = kind

    def get(self, key: str) -> dict[str, str] | None:
        """Return the value under the cache key, rebuilt from the verified bytes; None if it is missing or refused."""
        content = loading.fetch_unverified(self._kind, key, self._remote)
        if content is None or not loading.accept_or_quarantine(
            Ref(self._kind, key), content, origin=loading.describe_remote(self._remote)
        ):
            return None
        return {"data": base64.b64encode(content).decode("ascii")}


def accept_name(kind: Kind, name: str, where: str, *, safe: bool) -> bool:
    """Return ``safe``, and report a ``name`` that is not. Raises EntryRefusedError for one in strict mode."""
    if not safe:
        evidence = f"its name {name[:64]!r} would leave the place of its kind in the cache directory"
        report.refuse(Refusal(Reason.UNSAFE_NAME, evidence), kind, where, "Help: find out where it came from")
    return safe


def is_plain(name: str) -> bool:
    """Tell whether ``name``, joined to a directory, names a file directly in it, and not a hidden one."""
    return bool(name) and os.path.basename(name) == name and not name.startswith(".") and "\0" not in name


def is_autotuning_name(name: str) -> bool:
    """Tell whether torch gives such a name to autotuning results; nothing else is ever written under it."""
    return _AUTOTUNING_NAME.fullmatch(name) is not None
