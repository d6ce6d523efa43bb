"""The remote as the last tier of a lookup, and where what was compiled goes; without SAFECACHE_REMOTE it does nothing.

What is fetched is verified in memory, and published in the cache by the way of all files: its reader verifies it again,
as if it had always been there. A parcel names the bundles that its user asks for next, which are fetched ahead.
"""

from __future__ import annotations

import itertools
import os
import threading

from safecache.reporting import events
from safecache.reporting.kinds import ENTRIES, Count, Kind, Reason
from safecache.settings import config
from safecache.store import entry_files, manifests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from safecache.remote.client import Client
    from safecache.remote.parcels import Bundle, File, Parcel
    from safecache.signing.trust import Refusal

__all__ = ["asked", "asked_file", "fill", "fill_file", "is_on", "made", "made_file", "reset"]

_MOST_NEEDED = 512
# Bytes that are kept in memory until they are asked for, if they are.
_MOST_AHEAD = 64 << 20
# Precompiled headers have 150 MB each.
_HEADERS = (".gch", ".pch")
_REMEDY = "It is recompiled, and what the remote has is replaced."

_lock = threading.Lock()
_numbers = itertools.count(1)
# What was asked for, with the number of the last time: what an entry needs is what was asked for since it was.
_asked: dict[Bundle, int] = {}
# By name in the remote: what was fetched ahead; what it has as far as is known, and lacks; and what is bad there.
_ahead: dict[str, bytes] = {}
_there: set[str] = set()
_absent: set[str] = set()
_bad: set[str] = set()


def is_on() -> bool:
    """Whether there is a remote."""
    return config.current().remote is not None


def is_sending() -> bool:
    """Whether what this process compiles is sent. What a compile worker makes is sent with its parent's entry."""
    return is_on() and not config.current().remote_read_only and not config.is_one()


def _of_file(kind: Kind, path: str, root: str, key: str) -> Bundle:
    from safecache.remote.parcels import Bundle

    directory, name = os.path.split(path)
    return Bundle(kind, key or os.path.relpath(path, root), directory, root, name)


def asked(kind: Kind, key: str, directory: str, root: str) -> None:
    """Note that the bundle of this key, in ``directory`` of the cache ``root``, is looked up by this process."""
    if is_on():
        from safecache.remote.parcels import Bundle

        _note(Bundle(kind, key, directory, root))


def _note(bundle: Bundle) -> None:
    with _lock:
        _asked[bundle] = next(_numbers)


def asked_file(kind: Kind, path: str, root: str) -> None:
    """As asked(), for a bundle that is the file at ``path``."""
    if is_on():
        _note(_of_file(kind, path, root, ""))


def fill(kind: Kind, key: str, directory: str, root: str) -> bool:
    """Publish the bundle of this key in ``directory`` of the cache ``root``, if the remote has it; False if not.

    What is refused is reported; strict mode raises the reason's error.
    """
    if not is_on():
        return False
    from safecache.remote.parcels import Bundle

    return _fill(Bundle(kind, key, directory, root))


def fill_file(kind: Kind, path: str, root: str, key: str = "") -> bool:
    """As fill(), for a bundle that is the file at ``path``: its key is ``key``, or else its path below ``root``."""
    if not is_on():
        return False
    bundle = _of_file(kind, path, root, key)
    _note(bundle)
    return _fill(bundle)


def made(kind: Kind, key: str, directory: str, root: str) -> None:
    """Have the bundle of this key sent, which this process has compiled, with what it has asked for since that."""
    if is_sending():
        from safecache.remote.parcels import Bundle

        _send(Bundle(kind, key, directory, root))


def made_file(kind: Kind, path: str, root: str, key: str = "", *, again: bool = False) -> None:
    """As made(), for a bundle that is the file at ``path``; ``again``: something was added to it."""
    if is_sending() and not path.endswith(_HEADERS):
        _send(_of_file(kind, path, root, key), again=again)


def _send(bundle: Bundle, *, again: bool = False) -> None:
    from safecache.remote import parcels, sender

    needed: list[Bundle] = []
    if bundle.kind in ENTRIES:
        with _lock:
            begun = _asked.get(bundle, 0)
            needed = [other for other, number in _asked.items() if number > begun and other != bundle][-_MOST_NEEDED:]
    for other in (*needed, bundle):
        name = parcels.name_of(other.kind, other.key)
        # Entries of a key are added to those that it has.
        if name in _there and other is not bundle:
            continue
        with _lock:
            _there.add(name)
            _absent.discard(name)
        needs = tuple((need.kind, need.key) for need in needed) if other is bundle else ()
        sender.offer(other, needs, again=name in _bad or (again and other is bundle))


def _fill(bundle: Bundle) -> bool:
    from safecache.remote import client, parcels

    remote, name = client.current(), parcels.name_of(bundle.kind, bundle.key)
    content = _ahead.pop(name, None)
    # The entries of a key are all there after the first time; other files may have been removed since.
    is_here = bundle.kind in ENTRIES and name in _there
    if content is None and not is_here and name not in _absent and remote is not None and remote.may_read():
        content = _fetched(remote, name)
    if content is None:
        return False
    found = parcels.opened(content, name, bundle, config.current().remote_max_bytes)
    if not isinstance(found, parcels.Parcel):
        _refuse(found, bundle, name)
        return False
    if not all(_publish(file, bundle) for file in found.files):
        return False
    events.count(Count.REMOTE_HIT)
    _there.add(name)
    if remote is not None:
        _fetch_ahead(found, remote)
    return True


def _fetched(remote: Client, name: str) -> bytes | None:
    from safecache.remote import stores
    from safecache.remote.client import Unavailable

    full = stores.prefix() + name
    try:
        content = remote.read([full]).get(full)
    except Unavailable:
        return None
    if isinstance(content, bytes):
        return content
    # A miss is remembered, so that nobody waits for the same one twice.
    _absent.add(name)
    if content is None:
        events.count(Count.REMOTE_MISS)
    else:
        text = f"{name} has {content.size} bytes or more in the remote cache, and was not fetched."
        remedy = "SAFECACHE_REMOTE_MAX_BYTES says how much is."
        events.report(Reason.TOO_LARGE, text, cause="remote", remedy=remedy)
    return None


def _refuse(refusal: Refusal, bundle: Bundle, name: str) -> None:
    _absent.add(name)
    _bad.add(name)
    where = f"{bundle.kind.noun} {bundle.key[:64]} from the remote cache"
    message = f"{where} was not used: {refusal.evidence}."
    events.add_refusal(message)
    remedy = f"{refusal.remedy} {_REMEDY}".strip()
    events.report(refusal.reason, message, cause=f"remote {bundle.kind.value}", remedy=remedy)


def _publish(file: File, bundle: Bundle) -> bool:
    path, kind = bundle.path(file.name), bundle.kind
    if file.record is not None:
        where, what = manifests.path_of(path, bundle.root, kind), f"the record of {kind.noun} {path}"
        if not manifests.publish(where, file.record, bundle.root, what, kind):
            return False
    try:
        entry_files.publish(path, file.content, bundle.root)
    except OSError as error:
        text = f"{kind.noun} {path} was not copied from the remote cache: {error.strerror}."
        cause = f"{error.errno} {bundle.root}"
        events.report(Reason.UNWRITABLE, text, cause=cause, remedy="Make room there.", error=error)
        return False
    return True


def _fetch_ahead(parcel: Parcel, remote: Client) -> None:
    """Fetch what is needed next and fits into what may be fetched at once: its sizes first, then the contents."""
    from safecache.remote import parcels, stores
    from safecache.remote.client import Unavailable

    names = [parcels.name_of(kind, key) for kind, key in parcel.needs[:_MOST_NEEDED]]
    wanted = [name for name in names if name not in _ahead and name not in _there and name not in _absent]
    before, most = stores.prefix(), min(config.current().remote_max_bytes, _MOST_AHEAD - sum(map(len, _ahead.values())))
    try:
        sizes = remote.sizes([before + name for name in wanted]) if wanted else {}
        totals = itertools.accumulate(sizes.values())
        fitting = [full for full, total in zip(sizes, totals, strict=True) if total <= most]
        contents = remote.read(fitting) if fitting else {}
    except Unavailable:
        return
    _absent.update(name for name in wanted if before + name not in sizes)
    _ahead.update({full[len(before) :]: found for full, found in contents.items() if isinstance(found, bytes)})


def reset() -> None:
    """Forget what was asked for, fetched, and found missing."""
    for known in (_asked, _ahead, _there, _absent, _bad):
        known.clear()


def _renew_lock() -> None:
    # A thread of the parent may hold the lock at the moment of the fork; the child has no such thread.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
