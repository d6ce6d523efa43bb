"""The last tiers of a lookup, packs and the remote, and where what was compiled goes.

Without packs in SAFECACHE_LOWER and without SAFECACHE_REMOTE it does nothing.
The rest is imported when there is a remote.
"""

from __future__ import annotations

from safecache.places.refs import Ref
from safecache.ports import Requested
from safecache.reporting import boundary
from safecache.settings import config

__all__ = [
    "fetch",
    "has_supplied",
    "is_on",
    "is_sending",
    "keep",
    "leave_alone",
    "left_alone",
    "record_request",
]

# Precompiled headers have 150 MB each.
_HEADERS = (".gch", ".pch")
_FEATURE, _NOT_SENT = "the remote cache", "Other hosts compile this themselves."


def is_on() -> bool:
    """As Tier.is_on()."""
    return bool(config.current().packs) or _has_remote()


def _has_remote() -> bool:
    return config.current().remote is not None


def is_sending() -> bool:
    """Whether what this process compiles is sent. What a compile worker makes is sent with its parent's entry."""
    return _has_remote() and not config.current().remote_read_only and not config.is_compile_worker()


def has_supplied() -> bool:
    """As Tier.has_supplied()."""
    if config.current().packs:
        from safecache.packs import lower

        if lower.has_given():
            return True
    if not _has_remote():
        return False
    from safecache.remote import exchange

    return exchange.has_given()


def left_alone() -> float:
    """As Tier.left_alone(), of the remote."""
    if not _has_remote():
        return 0.0
    from safecache.remote import client

    remote = client.current()
    return 0.0 if remote is None else remote.left_alone()


def leave_alone(seconds: float) -> None:
    """As Tier.leave_alone(), of the remote."""
    if _has_remote():
        from safecache.remote import client

        remote = client.current()
        if remote is not None:
            remote.leave_alone(seconds)


def record_request(requested: Requested) -> None:
    """Observer: note what is looked up by this process."""
    if _has_remote():
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.asked(requested.ref)


def fetch(ref: Ref) -> bool:
    """As Tier.fetch(), from a pack or the remote. A file that travels by itself is recorded as requested."""
    if ref.is_file:
        record_request(Requested(ref))
    if config.current().packs:
        from safecache.packs import lower

        if lower.fill(ref):
            return True
    if not _has_remote():
        return False
    from safecache.remote import exchange

    with boundary.contain_errors(_FEATURE, "What it has is compiled instead."):
        return exchange.fill(ref)
    return False


def keep(ref: Ref, *, again: bool = False) -> None:
    """As Tier.keep(): have them sent, with what this process has asked for since it began to compile them."""
    if is_sending() and not ref.key.endswith(_HEADERS):
        from safecache.remote import exchange

        with boundary.contain_errors(_FEATURE, _NOT_SENT):
            exchange.send(ref, again=again)
