"""The candidates for a cache key, from the local and the remote cache, verified before they are unpickled."""

from __future__ import annotations

import base64
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from safecache.entries import copies, searches
from safecache.files import opening
from safecache.flights import scopes
from safecache.omitted import fingerprints
from safecache.places import layout
from safecache.remote import tier
from safecache.reporting import boundary, events, policy, report
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.signing import trust
from safecache.store import entry_files
from safecache.tiers import fallback, levels
from safecache.trials import first_runs

__all__ = [
    "RemoteCache",
    "Source",
    "admit",
    "fetch",
    "lookup",
    "may_be_read",
    "origin_of",
    "read",
    "without_candidates",
]


class RemoteCache(Protocol):
    """The half of torch's RemoteCache that a lookup uses; any method may raise anything."""

    def get(self, key: str) -> object:
        """The JSON object stored under the cache key ``key``; None if there is none."""


class Source:
    """Where the candidates for one cache key come from, and which type they must have.

    ``lower``: further directories to search, as layers.below() yields them.
    """

    def __init__(
        self,
        kind: Kind,
        cache_key: str,
        root: str,
        directory: str,
        is_entry: Callable[[Any], bool],
        lower: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.kind = kind
        self.cache_key = cache_key
        self.root = root
        self.directory = directory
        self.is_entry = is_entry
        self.lower = lower


class _Blind(threading.local):
    kind: Kind | None = None


_blind = _Blind()


@contextmanager
def without_candidates(kind: Kind) -> Iterator[None]:
    """In this block, make this thread's lookups of ``kind`` miss, so that a hit that leads nowhere is recompiled."""
    _blind.kind = kind
    try:
        yield
    finally:
        _blind.kind = None


def lookup(source: Source, *, local: bool, remote: RemoteCache | None) -> Iterator[tuple[Any, bytes, bool]]:
    """Yield (entry, its sealed bytes, whether it is local) for every candidate that may be used.

    In strict mode raises the reason's error for the first that may not.
    """
    searches.ask(source.kind, source.cache_key, source.root)
    first_runs.settle(source.root)
    tier.asked(source.kind, source.cache_key, source.directory, source.root)
    if _blind.kind is source.kind:
        return
    if local:
        yield from _local(source)
    if remote is not None:
        content, origin = fetch(source.kind, source.cache_key, remote), origin_of(remote)
        if content is not None and admit(source.kind, source.cache_key, content, origin=origin):
            yield from _load(source, content, origin=origin, root=None)


def _local(source: Source) -> Iterator[tuple[Any, bytes, bool]]:
    tried: set[str] = set()
    seen: set[str] = set()
    yield from _candidates(source, source.directory, source.root, tried, seen)
    for directory, layer in source.lower:
        root = layer if layer == levels.counterpart(source.root) else ""
        # That a cache with a fallback directory cannot be listed has been reported already.
        if layer != fallback.original(source.root) or os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
            yield from _candidates(source, directory, root, tried)
    if tier.fill(source.kind, source.cache_key, source.directory, source.root):
        yield from _candidates(source, source.directory, source.root, tried)
    took = partial(searches.took, source.kind)
    key, root = source.cache_key, source.root
    flight = None if fingerprints.differs_by_rank() else scopes.enter(source.kind, key, root, took)
    if flight is not None:
        searches.waited(source.kind, flight.waited)
        if flight.elsewhere:
            tier.fill(source.kind, source.cache_key, source.directory, source.root)
        try:
            # What was refused is so again, unless somebody has had the time to replace it.
            yield from _candidates(source, source.directory, source.root, tried if flight.waited else tried | seen)
        except GeneratorExit:
            flight.found(source.root)
            raise


def _candidates(
    source: Source, directory: str, root: str, tried: set[str], seen: set[str] | None = None
) -> Iterator[tuple[Any, bytes, bool]]:
    """One cache's candidates whose names are not yet in ``tried``; adds them to it. ``seen``: gets all names there.

    ``root``: where refused ones are quarantined; "" in a layer, where they stay. Those of the shared level are copied.
    """
    try:
        names = layout.list_entries(directory)
    except OSError as error:
        refusal = Refusal(Reason.UNREADABLE, f"{error.strerror}", _READ_REMEDY)
        report.refuse(refusal, source.kind, directory, error=error)
        return
    if seen is not None:
        seen.update(names)
    for name in names:
        path = os.path.join(directory, name)
        content = None if name in tried else _admitted(source, path, root)
        if content is not None:
            tried.add(name)
            yield from _load(source, content, origin=path, root=root)


def _admitted(source: Source, path: str, root: str) -> bytes | None:
    """Return the bytes of the candidate at ``path`` if it may be used; else, as reported, None."""
    with boundary.contain_errors(f"the check of a cached {source.kind.noun}", f"Compiling instead of using {path}."):
        if _is_barred(source, path, root):
            return None
        content = read(source.kind, path, listed=True)
        if content is not None and admit(source.kind, source.cache_key, content, path=path, root=root):
            if root not in ("", source.root):
                copies.put(os.path.join(source.directory, os.path.basename(path)), content, source.root, source.kind)
            return content
    return None


def _is_barred(source: Source, path: str, root: str) -> bool:
    """Whether processes have died of what is there, by its name, or of what its key has led to; reported, if so."""
    is_lower, name = root != source.root, os.path.basename(path)
    against = first_runs.objection(source.root, source.kind, source.cache_key, name, is_lower=is_lower)
    if against:
        moved = entry_files.quarantine(path, root, Reason.CRASHED_RUN) if root else None
        remedy = f"Recompiling; moved to {moved}." if moved else "Recompiling."
        report.refuse(Refusal(Reason.CRASHED_RUN, against, cause=first_runs.CAUSE), source.kind, path, remedy)
    return bool(against)


_UNUSABLE_REMEDIES = {
    Reason.FOREIGN_OWNER: "Recompiling. Help: remove it, or set SAFECACHE_SHARED=1 if users share the cache on purpose",
    Reason.TOO_LARGE: "Recompiling. Help: remove it, or trust the key that has sealed it: safecache trust FILE",
}
_READ_REMEDY = "Recompiling. Help: make it readable, or remove it"


def read(kind: Kind, path: str, *, listed: bool = False) -> bytes | None:
    """The unverified bytes of the file at ``path``; None if there is none or, as reported, it cannot be used.

    ``listed``: see entry_files.read_entry(). Raises the reason's error in strict mode.
    """
    try:
        return entry_files.read_entry(path, entry_files.largest(kind), listed=listed)
    except FileNotFoundError:
        return None  # cleared by another process since the listing: same as never written
    except opening.UnusableEntry as unusable:
        _note_unusable(unusable, kind, path)
    except OSError as error:
        report.refuse(Refusal(Reason.UNREADABLE, f"{error.strerror}"), kind, path, _READ_REMEDY, error=error)
    return None


def may_be_read(kind: Kind, path: str) -> bool:
    """Whether torch may read the file by itself: not if it is irregular or too large, which is reported.

    Raises the reason's error in strict mode.
    """
    try:
        opening.check_up_to(entry_files.largest(kind))(os.lstat(path))
    except opening.UnusableEntry as unusable:
        _note_unusable(unusable, kind, path)
        return False
    except OSError:
        return True  # it is gone, or fails as in stock torch
    return True


def _note_unusable(unusable: opening.UnusableEntry, kind: Kind, path: str) -> None:
    remedy = _UNUSABLE_REMEDIES.get(unusable.reason, "Recompiling. Help: remove it")
    report.refuse(Refusal(unusable.reason, f"it is {unusable.detail}"), kind, path, remedy)


def fetch(kind: Kind, cache_key: str, remote: RemoteCache) -> bytes | None:
    """The unverified bytes in a remote cache for this cache key; None if there are none or, as reported, none readable.

    Raises the reason's error in strict mode.
    """
    try:
        value = remote.get(cache_key)
        if value is None:
            return None
        data = value["data"] if isinstance(value, Mapping) else None
        if not isinstance(data, (str, bytes)):
            raise TypeError(f"the value is no JSON object with a data field, but {type(value).__name__}")
        return base64.b64decode(data)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        remedy = "Recompiling. Help: safecache doctor"
        report.refuse(Refusal(Reason.REMOTE_FAILED, text), kind, origin_of(remote), remedy, error=error)
        return None


def origin_of(remote: object) -> str:
    """Where something comes from that a remote cache of torch's has delivered, with the server if that is known."""
    server = getattr(getattr(getattr(remote, "backend", None), "_redis", None), "shown", "")
    return f"in the remote cache {server}".rstrip()


def admit(
    kind: Kind,
    cache_key: str,
    content: bytes,
    *,
    path: str | None = None,
    root: str = "",
    origin: str = "",
    whole: bool = True,
) -> bool:
    """Whether ``content`` may be used; a refusal is reported, and a file that is bad for everybody quarantined.

    Pass the ``path`` of an entry in the cache ``root``, "" for a lower tier; or for other bytes their ``origin`` in
    words, which with a ``root`` is the path of a file whose name says nothing about its content. ``whole``: the file
    holds nothing else. Raises the reason's error in strict mode.
    """
    refusal = trust.judge(content, kind, cache_key, path, fingerprints.objection)
    if refusal is None:
        return True
    file = path or (origin if root else None)
    _refuse(refusal, kind, file, root, origin, content if whole else None)
    return False


def _refuse(refusal: Refusal, kind: Kind, path: str | None, root: str, origin: str, content: bytes | None) -> None:
    cache = layout.cache_root(path) if path is not None and kind in ENTRIES else ""
    if path is not None and root and policy.decide(refusal.reason, strict=False).quarantine:
        moved = entry_files.quarantine(path, root, refusal.reason, content)
        if moved is not None:
            events.count(Count.QUARANTINED)
        stays = "Could not quarantine it: no permission, or another process replaced it."
        remedy = f"Recompiling. {stays} Help: if this repeats, delete {path}"
        if moved:
            remedy = f"Recompiling; moved to {moved}. Help: safecache quarantine show {os.path.basename(moved)}"
        refusal = refusal._replace(remedy=remedy)
    report.refuse(refusal, kind, path or origin, root=cache)


def _load(source: Source, content: bytes, *, origin: str, root: str | None) -> Iterator[tuple[Any, bytes, bool]]:
    """``root``: as for admit(); None if the bytes are not from a file."""
    try:
        entry = pickle.loads(content)  # noqa: S301  admitted above
    except Exception as error:
        text = f"it cannot be unpickled: {type(error).__name__}: {error}"
        refusal = Refusal(Reason.UNLOADABLE, text, "The graph is compiled instead.")
        report.refuse(refusal, source.kind, origin, error=error)
        return
    if source.is_entry(entry):
        searches.offer(source.kind, entry, content, origin, root)
        yield entry, content, root is not None
        searches.pass_over(source.kind)
    else:
        refusal = Refusal(Reason.WRONG_TYPE, f"it holds a {type(entry).__module__}.{type(entry).__qualname__}")
        _refuse(refusal, source.kind, None if root is None else origin, root or "", origin, content)
