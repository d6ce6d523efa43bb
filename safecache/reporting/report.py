"""Reports of what is refused and what cannot be written: one record, one warning, one boundary around features."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from safecache.errors import EntryRefusedError
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config

__all__ = [
    "Observed",
    "Refusal",
    "Refused",
    "contain_errors",
    "fail_write",
    "make_refusal_error",
    "observe",
    "refuse",
    "suggest_fix",
]


class Refusal(NamedTuple):
    """Reason why an entry is not used: ``evidence`` and ``remedy`` are clauses for a person.

    ``found``: what was judged, since the path may hold something else when it is quarantined; see quarantine().
    ``cause``: warn once for each of these; by default once for each kind of entry.
    """

    reason: Reason
    evidence: str
    remedy: str = ""
    found: bytes | os.stat_result | None = None
    cause: str = ""


# Said once for all of a cache, whatever is found in it first.
_STOCK = (
    "Recompiling it and everything else unsealed in {0}; unsealed libraries and kernels go to quarantine. Help: if only"
    " you could write there, run `safecache adopt {0}` before the next start"
)


class Refused(NamedTuple):
    """Event: a file of this kind was refused; ``detail``: where, and why."""

    kind: Kind
    reason: Reason
    detail: str


class Observed(NamedTuple):
    """Event: a file is used that would be refused without SAFECACHE=observe; ``evidence``: why."""

    kind: Kind
    reason: Reason
    where: str
    evidence: str


def observe(refusal: Refusal, kind: Kind, where: str) -> None:
    """Report that the entry of ``kind`` at ``where`` is used although it would be refused."""
    events.tell(Observed(kind, refusal.reason, where, refusal.evidence))
    remedy = "Using it, because SAFECACHE=observe."
    message = f"would refuse {kind.noun} {where}"
    events.report(refusal.reason, message, why=refusal.evidence, cause=f"observed {kind.value}", remedy=remedy)


def refuse(
    refusal: Refusal,
    kind: Kind,
    where: str,
    consequence: str = "",
    *,
    error: BaseException | None = None,
    root: str = "",
) -> None:
    """Report that the entry of ``kind`` at ``where`` is not used. Raises the reason's error in strict mode.

    ``consequence``: what happens instead, as a sentence. ``error``: what has shown it. ``root``: the cache that the
    entry lies in, if ``safecache adopt`` would seal it there.
    """
    reason, evidence, remedy, _, cause = refusal
    if root and reason is Reason.UNSEALED:
        cause = config.split_cache_path(root)[0]  # Triton's for a device lies in another
        remedy = _STOCK.format(cause)
    message = f"refused {kind.noun} {where}"
    events.tell(Refused(kind, reason, f"{where}: {evidence}"))
    events.add_refusal(f"{message}: {evidence}.")
    remedy = f"{consequence} {remedy}".strip()
    events.report(reason, message, why=evidence, cause=cause or kind.value, remedy=remedy, error=error)


def make_refusal_error(refusal: Refusal, kind: Kind, where: str) -> EntryRefusedError:
    """Count the refusal and return the error to raise for it, where nothing can be recompiled.

    In every mode; no warning is logged, since the error says it.
    """
    events.count(refusal.reason)
    return EntryRefusedError(
        f"safecache: not loading {kind.noun} {where} [{refusal.reason.value}]: {refusal.evidence}."
        f" {f'{refusal.remedy} '.lstrip()}(see {refusal.reason.help})"
    )


_ELSEWHERE = "set {variable} to a directory that can be written"
_FREE = "free space there, such as with `safecache gc --max-bytes 10G`, or set {variable} to a directory with room"
_FIXES = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: f"the disk quota is used up: {_FREE}",
    errno.EACCES: "make the directory writable for uid {uid}, or " + _ELSEWHERE,
    errno.EPERM: "make the directory writable for uid {uid}, or " + _ELSEWHERE,
    errno.EROFS: "SAFECACHE_TIERS reads a read-only cache on purpose; for what is compiled, " + _ELSEWHERE,
    errno.EIO: "check the disk (dmesg), or set {variable} to a directory on another one",
    errno.ESTALE: "mount the network file system again, or " + _ELSEWHERE,
    errno.ENOTCONN: "the program behind this FUSE mount has ended: mount it again, or " + _ELSEWHERE,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
}


def suggest_fix(error: OSError, variable: str = "TORCHINDUCTOR_CACHE_DIR") -> str:
    """Return the remedy for a failed write, as ``Help: ...``. ``variable``: the setting that moves the directory."""
    fix = _FIXES.get(error.errno or 0, _ELSEWHERE)
    return f"Help: {fix.format(variable=variable, uid=os.geteuid())}"


def fail_write(
    action: str, error: OSError, consequence: str, root: str, variable: str = "TORCHINDUCTOR_CACHE_DIR"
) -> None:
    """Report once for each errno and ``root`` that a file could not be written. Raises CacheWriteError in strict mode.

    ``action``: what was tried, such as ``write kernel /a/b``. ``consequence``: what happens instead, as a sentence.
    ``variable``: the setting that moves the directory.
    """
    remedy = f"{consequence} {suggest_fix(error, variable)}"
    cause = f"{error.errno} {root}"
    events.report(
        Reason.UNWRITABLE, f"could not {action}", why=f"{error.strerror}", cause=cause, remedy=remedy, error=error
    )


@contextmanager
def contain_errors(feature: str, effect: str) -> Iterator[None]:
    """Report any Exception that leaves this block, once for each feature and type, and go on after the block.

    ``feature``: a noun phrase, such as "the remote cache". ``effect``: a sentence that tells what happens instead.
    Errors that strict mode has raised pass unchanged. In strict mode any other raises CacheReadError from it.
    """
    try:
        yield
    except Exception as error:
        events.report_failure(feature, effect, error)
