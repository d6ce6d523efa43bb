"""Events of this process: counters, one warning per cause, and a line in torch's trace log."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, TypeVar

from safecache import compiles
from safecache.errors import (
    CacheReadError,
    CacheWriteError,
    EntryRefusedError,
    ExecutionError,
    KeyringError,
    SafecacheError,
    UnpicklableEntryError,
    make_printable,
)
from safecache.reporting.kinds import Count, Reason
from safecache.session import Part, inherit
from safecache.settings import config

__all__ = [
    "Action",
    "Counted",
    "add_refusal",
    "claim_warning",
    "compose_message",
    "count",
    "decide_action",
    "find_rank",
    "list_refusals",
    "log_line",
    "make_label",
    "observe",
    "propagate_strict",
    "raise_strict",
    "read_counters",
    "replace_strict_error",
    "report",
    "report_failure",
    "stop_observing",
    "tell",
    "write_artifact",
]


def make_label() -> str:
    """Return a label of this process for log lines, such as ``[rank 3, pid 4711]``; without a rank if it has none."""
    number = find_rank()
    return f"[rank {number}, pid {os.getpid()}]" if number else f"[pid {os.getpid()}]"


def find_rank() -> str:
    """Return this process's rank: of torch.distributed if it is initialised, else the launcher's; "" without one."""
    distributed = sys.modules.get("torch.distributed")
    # While it is being imported, or in a torch built without it, these are missing.
    is_initialized = getattr(distributed, "is_initialized", None)
    get_rank = getattr(distributed, "get_rank", None)
    if is_initialized is not None and get_rank is not None and is_initialized():
        return str(get_rank())
    return config.find_rank()


def write_artifact(name: str, payload: dict[str, object]) -> None:
    """Write ``payload`` as JSON to torch's trace, under this thread's compile; do nothing if torch keeps no trace.

    Raises nothing: a trace that cannot be written is one warning for each type of error.
    """
    internal = sys.modules.get("torch._logging._internal")
    handlers = getattr(getattr(internal, "trace_log", None), "handlers", ())
    # Without TORCH_TRACE torch's handler has no directory, until the first of its artifacts takes it away.
    if internal is None or not any(getattr(handler, "root_dir", None) is not None for handler in handlers):
        return
    try:
        internal.trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": f"safecache_{name.replace(' ', '_')}", "encoding": "json"},
            payload_fn=lambda: payload,
            expect_trace_id=False,
        )
    except Exception as error:
        what = type(error).__name__
        if claim_warning((write_artifact, what)):
            _log.warning("safecache: cannot write to torch's trace: %s: %s", what, make_printable(str(error)))


# No NullHandler: it would do what it is for, and keep the warnings from the standard error of a server that configures
# its own loggers alone (vLLM does). Below a warning, nothing is shown that nobody has asked for, with or without one.
_log = logging.getLogger("safecache")

_observers: dict[type, list[Callable[[Any], None]]] = {}


class _State:
    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.warned: set[tuple[object, str]] = set()


_state: Part[_State] = Part(_State, inherit)


@contextmanager
def propagate_strict() -> Iterator[None]:
    """Run torch's lookup in this block; an error of raise_strict() in it leaves the block even if torch swallowed it.

    So does one that was raised in a pool's thread, if it passes through a block of this thread.
    """
    current = compiles.current
    if not current.reading:
        current.strict_error, current.refusals = None, []
    try:
        with compiles.override_scope(reading=current.reading + 1, refused_before=len(current.refusals)):
            yield
    except Exception as error:
        if current.strict_error is None and isinstance(error, SafecacheError) and error.is_strict:
            current.strict_error = error
        if current.strict_error is not None:
            raise current.strict_error from current.strict_error.__cause__
        raise
    if current.strict_error is not None:
        raise current.strict_error from current.strict_error.__cause__


def raise_strict(error: SafecacheError, cause: BaseException | None = None) -> NoReturn:
    """Raise ``error`` from ``cause``; it leaves each propagate_strict() of this thread, whoever catches it before."""
    error.is_strict = True
    if compiles.current.reading:
        compiles.current.strict_error = compiles.current.strict_error or error
    raise error from cause


def replace_strict_error(raised: SafecacheError, better: SafecacheError) -> SafecacheError:
    """Replace the pending strict error ``raised`` by ``better``, with a clearer text. Return ``better``, to raise."""
    better.is_strict = raised.is_strict
    if compiles.current.strict_error is raised:
        compiles.current.strict_error = better
    return better


def add_refusal(message: str) -> None:
    """Record for refusals() that this thread's lookup could not use something; does nothing outside of a lookup."""
    if compiles.current.reading:
        compiles.current.refusals.append(message)


def list_refusals() -> list[str]:
    """Return the messages of add_refusal() in this thread's innermost propagate_strict(), in order."""
    return compiles.current.refusals[compiles.current.refused_before :]


Event = TypeVar("Event")


class Counted(NamedTuple):
    """Event: a counter has grown. ``name``: value of a Count or Reason. ``seconds``: duration. ``root``: cache."""

    name: str
    number: int = 1
    seconds: float | None = None
    root: str = ""


def observe(event: type[Event], observer: Callable[[Event], None]) -> None:
    """Call ``observer`` with each event of this type, in the thread that tells the event. Idempotent."""
    observers = _observers.setdefault(event, [])
    if observer not in observers:
        observers.append(observer)


def stop_observing(event: type[Event], observer: Callable[[Event], None]) -> None:
    """Call ``observer`` with events of this type no more; nothing if it was no observer."""
    if observer in _observers.get(event, ()):
        _observers[event] = [each for each in _observers[event] if each != observer]


def tell(event: object) -> None:
    """Call each observer of the type of ``event``. One that raises is reported and removed; strict errors propagate."""
    for observer in _observers.get(type(event), ()):
        try:
            observer(event)
        except Exception as error:
            if not (isinstance(error, SafecacheError) and error.is_strict):
                stop_observing(type(event), observer)
            report_failure(f"an observer, {observer.__module__},", "This process does not call it again.", error)


def count(what: Count | Reason, number: int = 1, *, seconds: float | None = None, root: str = "") -> None:
    """Add ``number`` to a counter, and tell observers. ``seconds``, ``root``: as in Counted, for observers only."""
    with _state.lock:
        _state.now.counters[what.value] += number
    tell(Counted(what.value, number, seconds, root))


def read_counters() -> dict[str, int]:
    """Return how often each thing happened in this process, by the values of Count and Reason; absent means never."""
    with _state.lock:
        return dict(_state.now.counters)


def report(
    reason: Reason,
    message: str,
    *,
    why: str = "",
    cause: str = "",
    remedy: str = "",
    error: BaseException | None = None,
) -> None:
    """Count and trace ``reason``; then, as the policy says, warn once for this reason and ``cause``, or raise.

    The line is that of compose_message(), and ends in the command that prints the reason's part of the guide.

    A repeated or silent report is logged at DEBUG level: TORCH_LOGS=+safecache shows it. In strict mode raises the
    SafecacheError that the policy names for this reason, with ``error`` as its cause.
    """
    count(reason)
    what = f"{message}: {why}." if why else message
    write_artifact(reason.value, {"reason": reason.value, "what": what, "cause": cause, "remedy": remedy})
    action = decide_action(reason, strict=config.current().strict)
    text = make_printable(f"safecache: {compose_message(message, reason.value, why, remedy)}")
    if action.error is not None:
        raise_strict(action.error(f"{text} (see {reason.help})"), error)
    if claim_warning((reason, cause)) and action.warn:
        log_line(logging.WARNING, f"{text} (logged once per process; see {reason.help})")
    else:
        log_line(logging.DEBUG, text)


def compose_message(message: str, code: str, why: str, remedy: str) -> str:
    """Return ``message [code]: why. remedy``, the form of each message.

    ``message``: subject and state. ``remedy``: what safecache does, and what the user can do.
    """
    return f"{message} [{code}]{f': {why}.' if why else ''} {remedy}".rstrip()


def report_failure(feature: str, effect: str, error: Exception) -> None:
    """Report that ``feature`` has failed, once for each type of error. Raises strict errors again, unchanged.

    In strict mode any other raises CacheReadError from it. ``effect``: a sentence that tells what happens instead.
    """
    if isinstance(error, SafecacheError) and error.is_strict:
        raise error
    why = f"{type(error).__name__}: {error}"
    cause = f"{feature} {type(error).__name__}"
    remedy = f"{effect} Help: safecache doctor"
    report(Reason.FEATURE_FAILED, f"{feature} failed", why=why, cause=cause, remedy=remedy, error=error)


def claim_warning(what: tuple[object, str]) -> bool:
    """Claim the one warning of ``what``; False if this process has given it since reset()."""
    with _state.lock:
        warned = _state.now.warned
        is_new = what not in warned
        warned.add(what)
    return is_new


def log_line(level: int, text: str) -> None:
    """Log ``text`` as one line at this ``level`` of logging, with this process's label() and escapes by printable()."""
    if _log.isEnabledFor(level):
        _log.log(level, "%s %s", make_printable(text), make_label())


class Action(NamedTuple):
    """Policy for a reason. ``error``: None to go on. ``quarantine``: move the file away first. ``warn``: once."""

    quarantine: bool
    warn: bool
    error: type[SafecacheError] | None


# An entry that somebody else may still read (stock torch, the owner of another key, a process of another namespace, a
# newer safecache) is left where it is; one that is broken or misplaced for everybody is moved away.
_QUARANTINED = frozenset(
    {
        Reason.DAMAGED,
        Reason.BAD_SEAL,
        Reason.OTHER_KIND,
        Reason.OTHER_CACHE_KEY,
        Reason.OTHER_BUILD,
        Reason.OTHER_GPU,
        Reason.STALE,
        Reason.WRONG_TYPE,
        Reason.CRASHED_RUN,
        Reason.FAILED_RUN,
        Reason.DIFFERS,
    }
)

# INCOMPLETE follows from another save that failed, which was said or raised there. OUTDATED follows from an upgrade.
# What another rank has compiled is for that rank.
# Beside a key that is refused the others go on working; what needed that one is refused, and raised, by itself.
# What a lookup came to is for its journal: a miss alone is no problem of the cache.
_SILENT = frozenset(
    {
        Reason.INCOMPLETE,
        Reason.OUTDATED,
        Reason.OTHER_RANK,
        Reason.NEVER_SEEN,
        Reason.KEY_DIFFERS,
        Reason.EVICTED,
        Reason.GUARD_FAILED,
        Reason.OTHER_RANK_MISSED,
        Reason.SAMPLED,
        Reason.UPSTREAM_BYPASS,
        Reason.DISABLED,
        Reason.LOOKUP_FAILED,
    }
)
# A crash, or an exception, is raised as what it is, and what is compiled in this process works as in stock. Without its
# remote a cache is whole: what is missing is compiled. Of what is compiled again the new is used.
_NEVER_RAISED = _SILENT | {
    Reason.STOOD_DOWN,
    Reason.KEY_REFUSED,
    Reason.NOT_TRIMMED,
    Reason.NOT_ISOLATED,
    Reason.CRASHED,
    Reason.CRASHED_BEFORE,
    Reason.FAILED_RUN,
    Reason.NOT_EXPLAINED,
    Reason.REMOTE_UNAVAILABLE,
    Reason.DIFFERS,
    Reason.NOT_RECOMPILED,
}

_STRICT_ERRORS: dict[Reason, type[SafecacheError]] = {
    Reason.UNREADABLE: CacheReadError,
    Reason.UNLOADABLE: CacheReadError,
    Reason.REMOTE_FAILED: CacheReadError,
    Reason.FEATURE_FAILED: CacheReadError,
    Reason.ENTRY_MISSING: CacheReadError,
    Reason.UNPICKLABLE: UnpicklableEntryError,
    Reason.UNPREPARED: UnpicklableEntryError,
    Reason.NOT_CACHEABLE: UnpicklableEntryError,
    Reason.UNWRITABLE: CacheWriteError,
    Reason.UNUSABLE_DIRECTORY: CacheWriteError,
    Reason.LOCK_HELD: CacheWriteError,
    Reason.NO_KEY: KeyringError,
    Reason.NOT_EXECUTABLE: ExecutionError,
    Reason.EXEC_DIR_UNUSABLE: ExecutionError,
}


def decide_action(reason: Reason, *, strict: bool) -> Action:
    """Return what to do about ``reason``. ``strict``: whether strict mode is on."""
    raised = strict and reason not in _NEVER_RAISED
    error = _STRICT_ERRORS.get(reason, EntryRefusedError) if raised else None
    return Action(reason in _QUARANTINED, reason not in _SILENT, error)
