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
    "is_autotuning_name",
    "is_plain",
    "load_refusal",
    "name_graph",
    "raise_on_refusal",
    "read",
    "report_as",
    "require",
    "require_not_crashed",
    "sealed_provenance",
    "unpacking",
    "unpickle",
]

_AUTOTUNING_NAME = re.compile(r"[A-Za-z0-9_-]+\.best_config")


@contextmanager
def report_as(where: str, *, is_unguarded: bool = False) -> Iterator[None]:
    """In this block, what require() calls the bytes that this thread passes to it, in reports.

    ``is_unguarded``: no guards are evaluated for what is loaded, so that an exception may be due to arguments.
    """
    with compiles.scope(origin=where, is_unguarded=is_unguarded):
        yield


@contextmanager
def raise_on_refusal() -> Iterator[None]:
    """In this block an artifact is loaded that the program has named: its refusal is raised as RefusedArtifactError."""
    try:
        yield
    except RefusedArtifactError:
        raise
    except EntryRefusedError as error:
        raise events.instead(error, RefusedArtifactError(*error.args)) from error.__cause__


def require(kind: Kind, content: bytes, cache_key: str = "") -> None:
    """Return if ``content`` may be unpickled; otherwise report it, and raise RefusedArtifactError in default mode too.

    For artifacts that cannot miss: there is no graph to compile instead.
    """
    with raise_on_refusal(), events.propagate_strict():
        if not loading.accept_or_quarantine(
            Ref(kind, cache_key), content, origin=compiles.current.origin or "given as bytes"
        ):
            raise RefusedArtifactError(f"safecache: {events.refusals()[-1]} Compile it anew.")


@contextmanager
def unpacking(bundle: Any) -> Iterator[None]:
    """In this block this thread loads the graphs that this AOTAutograd entry has in it: no two took the same time."""
    with compiles.scope(which=f"{bundle.forward_time_taken_ns} {bundle.backward_time_taken_ns}"):
        yield


def name_graph(code: str) -> str:
    """The name of the graph with this code in the artifact that this thread loads; "" if it loads none."""
    return refs.name_artifact(code, compiles.current.which) if compiles.current.which is not None else ""


def load_refusal(bundle: Any, root: str) -> Refusal | None:
    """Why nothing in such an entry is to be run, as the cache ``root`` knows; None if nothing is against it."""
    graphs = [getattr(getattr(bundle, name, None), "result", None) for name in ("compiled_fw", "compiled_bw")]
    codes = list(filter(None, (getattr(graph, "source_code", None) for graph in graphs)))
    if not codes:
        return None
    with unpacking(bundle):
        names = [name_graph(code) for code in codes]
    ref = Ref(Kind.AOT_GRAPH, "", root)
    return next(filter(None, (plugs.load_guard.refusal(ref, name) for name in names)), None)


def require_not_crashed(kind: Kind, name: str, root: str) -> None:
    """Raise RefusedArtifactError, in default mode too, if processes have died of the artifact of this name.

    ``root``: the cache that knows.
    """
    refusal = plugs.load_guard.refusal(Ref(kind, "", root), name)
    if refusal is not None:
        where, remedy = compiles.current.origin or "given as bytes", "Compile it anew."
        with raise_on_refusal(), events.propagate_strict():
            report.refuse(refusal, kind, where, remedy)
            raise RefusedArtifactError(f"safecache: {events.refusals()[-1]} {remedy}")


def read(ref: Ref, path: str) -> bytes | None:
    """The bytes of the file at ``path`` if they may be unpickled, empty if there is none; None, and reported, if not.

    A file that is bad for everybody is quarantined if it lies in a cache, ``ref.root``; a user's own is left alone.
    One that only a lower tier has is copied to ``path``. Strict mode raises the reason's error instead of None.
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


def sealed_provenance(kind: Kind, cache_key: str, content: bytes) -> Mapping[str, str]:
    """The provenance in the seal of these bytes, which read() has verified; empty without a valid seal."""
    namespace = config.current().namespace
    verdict = seal.inspect(content, len(content), kind, cache_key, keyring.current().find, namespace)
    return verdict.provenance or {}


def unpickle(content: bytes, loads: Callable[[], Any]) -> Any:
    """Return what ``loads`` does. Where this thread's Compile has bytes pinned, refuse others by EntryRefusedError.

    Torch reads the file again by itself. Only the first call is checked: what it unpickles in turn came with it.
    """
    pinned, compiles.current.pinned = compiles.current.pinned, None
    if pinned is not None and content != pinned[1]:
        # Torch catches the error, and goes on as if there were no file.
        with events.propagate_strict():
            refusal = Refusal(Reason.DAMAGED, "it was replaced while it was read", "Find out by whom.")
            report.refuse(refusal, pinned[0], "on disk")
            raise EntryRefusedError(f"safecache: {events.refusals()[-1]}")
    return loads()


class VerifiedRemote:
    """A remote cache that only returns values that may be unpickled."""

    def __init__(self, remote: RemoteCache, kind: Kind) -> None:
        self._remote = remote
        self._kind = kind

    def get(self, key: str) -> dict[str, str] | None:
        """The value under the cache key, rebuilt from the verified bytes; None if there is none or it is refused."""
        content = loading.fetch(self._kind, key, self._remote)
        if content is None or not loading.accept_or_quarantine(
            Ref(self._kind, key), content, origin=loading.describe_remote(self._remote)
        ):
            return None
        return {"data": base64.b64encode(content).decode("ascii")}


def accept_name(kind: Kind, name: str, where: str, *, safe: bool) -> bool:
    """Returns ``safe``, and reports a name that is not. Raises EntryRefusedError for it in strict mode."""
    if not safe:
        evidence = f"its name {name[:64]!r} would leave the place of its kind in the cache directory"
        report.refuse(Refusal(Reason.UNSAFE_NAME, evidence), kind, where, "Find out where it came from.")
    return safe


def is_plain(name: str) -> bool:
    """Whether ``name``, joined to a directory, names a file directly in it, and not a hidden one."""
    return bool(name) and os.path.basename(name) == name and not name.startswith(".") and "\0" not in name


def is_autotuning_name(name: str) -> bool:
    """Whether torch gives such a name to autotuning results; nothing else is ever written under it."""
    return _AUTOTUNING_NAME.fullmatch(name) is not None
