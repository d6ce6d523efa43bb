"""What happened: counters, and one warning per cause and process."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter

from safecache import config, policy
from safecache.errors import SafecacheError
from safecache.reasons import Count, Reason

__all__ = ["count", "counters", "report", "reset"]

# No NullHandler: with one, Python's last-resort handler is off, and a server that configures only its own
# logger (vLLM does) would never show a warning.
_log = logging.getLogger("safecache")

_lock = threading.Lock()
_counters: Counter[str] = Counter()
_warned: set[tuple[Reason, str]] = set()


def count(what: Count | Reason) -> None:
    """Add one to a counter."""
    with _lock:
        _counters[what.value] += 1


def counters() -> dict[str, int]:
    """How often each thing happened in this process, by the values of Count and Reason; absent means never."""
    with _lock:
        return dict(_counters)


def report(
    reason: Reason, message: str, *, cause: str = "", remedy: str = "", error: BaseException | None = None
) -> None:
    """Count ``reason``; then, as the policy says, warn once for this reason and ``cause``, or raise.

    Raises the SafecacheError that the policy names for this reason, in strict mode, with ``error`` as its cause.
    """
    count(reason)
    action = policy.decide(reason, strict=config.current().strict)
    text = f"safecache: {message} [{reason.value}]" + (f" {remedy}" if remedy else "")
    if action.error is not None:
        raised: SafecacheError = action.error(text)
        raise raised from error
    with _lock:
        first = (reason, cause) not in _warned
        _warned.add((reason, cause))
    if first and action.warn:
        _log.warning("%s (Said once; safecache.stats() counts the rest.)", text)


def reset() -> None:
    """Forget the counters and which warnings were given."""
    with _lock:
        _counters.clear()
        _warned.clear()


def _renew_lock() -> None:
    # A thread of the parent may hold the lock at the moment of the fork; the child has no such thread.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
