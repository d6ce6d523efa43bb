"""The last tier of a lookup, the remote, and where what was compiled goes; imported when there is a remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from safecache.places.refs import Ref
from safecache.ports import Bundle, Requested
from safecache.reporting import report
from safecache.settings import config

__all__ = [
    "acquire_lease",
    "find_candidates",
    "is_on",
    "is_sending",
    "keep",
    "record_request",
]

# Precompiled headers have 150 MB each.
_HEADERS = (".gch", ".pch")
_FEATURE, _NOT_SENT = "the remote cache", "Other hosts compile this themselves."


def is_on() -> bool:
    """Tell whether there is a remote."""
    return config.current().remote is not None


def is_sending() -> bool:
    """Tell whether this process sends what it compiles. A compile worker does not: its parent sends that."""
    return is_on() and not config.current().remote_read_only and not config.is_compile_worker()


def acquire_lease(ref: Ref, most: Callable[[], float]) -> tuple[Callable[[], None] | None, float]:
    """Take the lease on ``ref`` among the hosts, waiting as long as ``most`` says: see Plugs.

    Return what releases it, or None if it cannot be had, and the seconds waited.
    """
    if not is_sending():
        return None, 0.0
    from safecache.remote import exchange

    claim, waited = exchange.acquire(ref, most())
    return (None if claim is None else claim.release), waited


def record_request(requested: Requested) -> None:
    """Observer: record what this process looks up."""
    if is_on():
        from safecache.remote import exchange

        with report.contain_errors(_FEATURE, _NOT_SENT):
            exchange.record_lookup(requested.ref)


def find_candidates(ref: Ref) -> Iterator[Bundle]:
    """Yield what the remote has: see Tier.candidates(). A file that travels by itself is recorded as requested."""
    if ref.is_file:
        record_request(Requested(ref))
    if is_on():
        from safecache.remote import exchange

        with report.contain_errors(_FEATURE, "What it has is compiled instead."):
            yield from exchange.find_candidates(ref)


def keep(ref: Ref, *, again: bool = False) -> None:
    """Queue the files of ``ref`` for the remote, with what this process requested to compile them: see Tier.keep()."""
    if is_sending() and not ref.key.endswith(_HEADERS):
        from safecache.remote import exchange

        with report.contain_errors(_FEATURE, _NOT_SENT):
            exchange.send(ref, again=again)
