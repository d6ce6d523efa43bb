"""The candidates for a cache key, from the local and the remote cache, verified before they are unpickled."""

from __future__ import annotations

import base64
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from safecache import compiles
from safecache.entries import searches
from safecache.fs import opening
from safecache.places import layout
from safecache.places.refs import Ref
from safecache.ports import File, Requested, plugs, tell
from safecache.reporting import events, report
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.signing import trust
from safecache.store import bundles, entry_files
from safecache.tiers import fallback, levels

__all__ = [
    "RemoteCache",
    "Source",
    "accept_or_quarantine",
    "check_readable",
    "describe_remote",
    "fetch_unverified",
    "look_up_entries",
    "read_unverified",
]


class RemoteCache(Protocol):
    """Half of torch's RemoteCache that a lookup uses. Any method may raise anything."""

    def get(self, key: str) -> object:
        """Return the JSON object stored under the cache key ``key``; None if there is none."""


class Source(NamedTuple):
    """Cache key of a lookup, with a check of the type that its candidates must have."""

    ref: Ref
    is_entry: Callable[[Any], bool]


def look_up_entries(source: Source, *, local: bool, remote: RemoteCache | None) -> Iterator[tuple[Any, bytes, bool]]:
    """Yield (entry, its sealed bytes, whether it is local) for every candidate that may be used.

    May wait for another process that compiles the same key. Strict mode raises the reason's error for the first
    candidate that is refused. ``remote``: torch's, asked last.
    """
    ref = source.ref
    searches.set_lookup_key(ref)
    plugs.load_guard.open_cache(ref.root)
    tell(Requested(ref))
    if compiles.current.missing is ref.kind:
        return
    if local:
        yield from _iter_local(source)
    if remote is not None:
        content, origin = fetch_unverified(ref.kind, ref.key, remote), describe_remote(remote)
        ref = ref._replace(root="")
        if content is not None and accept_or_quarantine(ref, content, origin=origin):
            yield from _load(source, ref, content, origin=origin, is_file=False)


def _iter_local(source: Source) -> Iterator[tuple[Any, bytes, bool]]:
    ref = source.ref
    tried: set[str] = set()
    seen: set[str] = set()
    yield from _iter_candidates(source, ref.directory, ref.root, tried, seen)
    for directory, layer in fallback.iter_lower_paths(ref.directory, ref.root):
        root = layer if layer == levels.find_counterpart(ref.root) else ""
        # That a cache with a fallback directory cannot be listed has been reported already.
        if layer != fallback.find_original(ref.root) or os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
            yield from _iter_candidates(source, directory, root, tried)
    if bundles.fetch(ref):
        yield from _iter_candidates(source, ref.directory, ref.root, tried)
    took = partial(searches.last_compile_seconds, ref.kind)
    flight = None if plugs.key_part.is_rank_dependent() else plugs.single_flight.wait_or_lead(ref, took)
    if flight is not None:
        searches.add_wait(ref.kind, flight.waited)
        if flight.elsewhere:
            bundles.fetch(ref)
        try:
            # What was refused is so again, unless somebody has had the time to replace it.
            yield from _iter_candidates(source, ref.directory, ref.root, tried if flight.waited else tried | seen)
        except GeneratorExit:
            flight.mark_found()
            raise


def _iter_candidates(
    source: Source, directory: str, root: str, tried: set[str], seen: set[str] | None = None
) -> Iterator[tuple[Any, bytes, bool]]:
    """Yield one cache's candidates that are not in ``tried``, and add their names to it. ``seen``: gets all names.

    ``root``: where refused ones are quarantined; "" in a layer, where they stay. Those of the shared tier are copied.
    """
    try:
        names = layout.list_entries(directory)
    except OSError as error:
        refusal = Refusal(Reason.UNREADABLE, f"{error.strerror}", _READ_REMEDY)
        report.refuse(refusal, source.ref.kind, directory, error=error)
        return
    if seen is not None:
        seen.update(names)
    for name in names:
        path = os.path.join(directory, name)
        content = None if name in tried else _read_candidate(source, path, root)
        if content is not None:
            tried.add(name)
            yield from _load(source, source.ref._replace(root=root), content, origin=path, is_file=True)


def _read_candidate(source: Source, path: str, root: str) -> bytes | None:
    """Return the bytes of the candidate at ``path`` if it may be used; else, as reported, None."""
    ref = source.ref
    with report.contain_errors(f"the check of a cached {ref.kind.noun}", f"Compiling instead of using {path}."):
        if _is_barred(ref, path, root):
            return None
        content = read_unverified(ref.kind, path, listed=True)
        here, is_lower = ref._replace(root=root), root != ref.root
        if content is not None and accept_or_quarantine(here, content, path=path, is_lower=is_lower):
            if is_lower and root:
                bundles.publish([File(os.path.basename(path), content, None)], ref, path)
            return content
    return None


def _is_barred(ref: Ref, path: str, root: str) -> bool:
    """Tell whether processes have died of that file, by its name, or of what its key has led to; report it."""
    refusal = plugs.load_guard.find_refusal(ref, os.path.basename(path), is_lower=root != ref.root)
    if refusal is not None:
        moved = entry_files.quarantine(path, root, refusal.reason) if root else None
        remedy = f"Recompiling; moved to {moved}." if moved else "Recompiling."
        report.refuse(refusal, ref.kind, path, remedy)
    return refusal is not None


_UNUSABLE_REMEDIES = {
    Reason.FOREIGN_OWNER: "Recompiling. Help: remove it, or, to share the cache, set SAFECACHE_TRUST=shared",
    Reason.TOO_LARGE: "Recompiling. Help: remove it, or trust the key that has sealed it: safecache keys trust FILE",
}
_READ_REMEDY = "Recompiling. Help: make it readable, or remove it"


def read_unverified(kind: Kind, path: str, *, listed: bool = False) -> bytes | None:
    """Return the unverified bytes of the file at ``path``; None if it is missing or, as reported, unusable.

    ``listed``: see entry_files.read_unverified_entry(). Raises the reason's error in strict mode.
    """
    try:
        return entry_files.read_unverified_entry(path, entry_files.max_entry_size(kind), listed=listed)
    except FileNotFoundError:
        return None  # cleared by another process since the listing: same as never written
    except opening.UnusableEntry as unusable:
        _note_unusable(unusable, kind, path)
    except OSError as error:
        report.refuse(Refusal(Reason.UNREADABLE, f"{error.strerror}"), kind, path, _READ_REMEDY, error=error)
    return None


def check_readable(kind: Kind, path: str) -> bool:
    """Tell whether torch may read the file by itself; report a file that is irregular or too large.

    True if it is missing, for torch to meet that. Raises the reason's error in strict mode.
    """
    try:
        opening.check_up_to(entry_files.max_entry_size(kind))(os.lstat(path))
    except opening.UnusableEntry as unusable:
        _note_unusable(unusable, kind, path)
        return False
    except OSError:
        return True  # it is gone, or fails as in stock torch
    return True


def _note_unusable(unusable: opening.UnusableEntry, kind: Kind, path: str) -> None:
    remedy = _UNUSABLE_REMEDIES.get(unusable.reason, "Recompiling. Help: remove it")
    report.refuse(Refusal(unusable.reason, f"it is {unusable.detail}"), kind, path, remedy)


def fetch_unverified(kind: Kind, cache_key: str, remote: RemoteCache) -> bytes | None:
    """Return the unverified bytes in a remote cache for this key; None if it has none or, as reported, none readable.

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
        report.refuse(Refusal(Reason.REMOTE_FAILED, text), kind, describe_remote(remote), remedy, error=error)
        return None


def describe_remote(remote: object) -> str:
    """Return a phrase, for messages, about a remote cache of torch's, with its server if that is known."""
    server = getattr(getattr(getattr(remote, "backend", None), "_redis", None), "shown", "")
    return f"in the remote cache {server}".rstrip()


def accept_or_quarantine(
    ref: Ref, content: bytes, *, path: str | None = None, origin: str = "", whole: bool = True, is_lower: bool = False
) -> bool:
    """Tell whether ``content`` may be used; report a refusal, and quarantine a file that is bad for everybody.

    ``path``: that of an entry in the cache ``ref.root``, which is "" for a lower tier. ``origin``: for other bytes,
    where they come from, in words; with a root, the path of a file whose name says nothing about its content.
    ``whole``: the file holds nothing else. ``is_lower``: stock torch does not look there. Raises the reason's error in
    strict mode.
    """
    refusal = trust.judge(content, ref.kind, ref.key, path, partial(plugs.key_part.find_refusal, ref))
    if refusal is None or (not is_lower and trust.is_observed(refusal, ref.kind, path or origin)):
        return True
    file = path or (origin if ref.root else None)
    _refuse_candidate(refusal, ref, file, origin, content if whole else None)
    return False


def _refuse_candidate(refusal: Refusal, ref: Ref, path: str | None, origin: str, content: bytes | None) -> None:
    cache = layout.find_cache_root(path) if path is not None and ref.kind in ENTRIES else ""
    consequence = "" if cache and refusal.reason is Reason.UNSEALED else "Recompiling."
    if path is not None and ref.root and events.decide_action(refusal.reason, strict=False).quarantine:
        moved = entry_files.quarantine(path, ref.root, refusal.reason, content)
        if moved is not None:
            events.count(Count.QUARANTINED)
        stays = "Could not quarantine it: no permission, or another process replaced it."
        remedy = f"{stays} Help: if this repeats, delete {path}"
        if moved:
            consequence = f"Recompiling; moved to {moved}."
            remedy = f"Help: safecache quarantine show {os.path.basename(moved)}"
        refusal = refusal._replace(remedy=remedy)
    report.refuse(refusal, ref.kind, path or origin, consequence, root=cache)


def _load(source: Source, ref: Ref, content: bytes, *, origin: str, is_file: bool) -> Iterator[tuple[Any, bytes, bool]]:
    """Unpickle an admitted candidate and yield it. ``ref``, ``origin``, ``is_file``: as for searches.offer()."""
    try:
        entry = pickle.loads(content)  # noqa: S301  admitted above
    except Exception as error:
        text = f"it cannot be unpickled: {type(error).__name__}: {error}"
        refusal = Refusal(Reason.UNLOADABLE, text, "The graph is compiled instead.")
        report.refuse(refusal, ref.kind, origin, error=error)
        return
    if source.is_entry(entry):
        searches.offer(ref, entry, content, origin, is_file=is_file)
        yield entry, content, is_file
        searches.pass_over(ref.kind)
    else:
        refusal = Refusal(Reason.WRONG_TYPE, f"it holds a {type(entry).__module__}.{type(entry).__qualname__}")
        _refuse_candidate(refusal, ref, origin if is_file else None, origin, content)
