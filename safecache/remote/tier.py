"""The last tiers of a lookup, packs and the remote, and where what was compiled goes.

Without packs in SAFECACHE_LOWER and without SAFECACHE_REMOTE it does nothing.
The rest is imported when there is a remote.
"""

from __future__ import annotations

from safecache.reporting import boundary
from safecache.settings import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from safecache.places.refs import Ref

__all__ = [
    "fetch_into_cache",
    "has_supplied_entries",
    "is_below",
    "is_on",
    "is_sending",
    "leave_alone",
    "left_alone",
    "record_request",
    "send_files",
]

# Precompiled headers have 150 MB each.
_HEADERS = (".gch", ".pch")
_FEATURE, _NOT_SENT = "the remote cache", "Other hosts compile this themselves."


def is_on() -> bool:
    """Whether there is a remote."""
    return config.current().remote is not None


def is_below() -> bool:
    """Whether there is any such tier."""
    return bool(config.current().packs) or is_on()


def is_sending() -> bool:
    """Whether what this process compiles is sent. What a compile worker makes is sent with its parent's entry."""
    return is_on() and not config.current().remote_read_only and not config.is_compile_worker()


def has_supplied_entries() -> bool:
    """Whether this process has had anything from such a tier."""
    if config.current().packs:
        from safecache.packs import lower

        if lower.has_given():
            return True
    if not is_on():
        return False
    from safecache.remote import exchange

    return exchange.has_given()


def left_alone() -> float:
    """For how many seconds from now this process does not read it, which has failed; 0 if it does."""
    if not is_on():
        return 0.0
    from safecache.remote import client

    remote = client.current()
    return 0.0 if remote is None else remote.left_alone()


def leave_alone(seconds: float) -> None:
    """Do not read it for so long, as another process of this program has found that it fails."""
    if is_on():
        from safecache.remote import client

        remote = client.current()
        if remote is not None:
            remote.leave_alone(seconds)


def record_request(ref: Ref) -> None:
    """Note that it is looked up by this process."""
    if is_on():
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.asked(ref)


def fetch_into_cache(ref: Ref) -> bool:
    """Publish its files in the cache, if a pack or the remote has them; False if not.

    A file that travels by itself is recorded as requested. What is refused is reported; strict mode raises its error.
    """
    if ref.is_file:
        record_request(ref)
    if config.current().packs:
        from safecache.packs import lower

        if lower.fill(ref):
            return True
    if not is_on():
        return False
    from safecache.remote import exchange

    with boundary.contain_errors(_FEATURE, "What it has is compiled instead."):
        return exchange.fill(ref)
    return False


def send_files(ref: Ref, *, again: bool = False) -> None:
    """Have its files sent, which this process has compiled, with what it has asked for since it began to.

    ``again``: in place of what the remote has.
    """
    if is_sending() and not ref.key.endswith(_HEADERS):
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.send(ref, again=again)
