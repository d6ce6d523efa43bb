"""Outcomes of lookups, of this process and of a run, and the journal that stores them.

A feature: it may import the core, and no other feature. A journal is a file of JSON lines for each process. What was no
hit is written at once, since a compile follows. Hits are counted, and written with the next line, when the process
ends, or a moment later, by a thread, since a server may be killed. What happens to the journal is of no consequence to
a compile: so it is no mapped file, where a full disk would end the process (SIGBUS).
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from enum import Enum

from safecache import ports
from safecache.fs import filesystem, folders
from safecache.fs.folders import Folder
from safecache.places import metadata
from safecache.places.refs import Ref
from safecache.ports import Counted, LeftToOthers, Lookup, Observed, Outcome, Saved, Waited
from safecache.reporting import events, report
from safecache.reporting.kinds import LOOKED_UP, OF_RECOMPILE_CHECK, OF_REMOTE, Count, Kind, Reason
from safecache.session import Part, call_at_exit
from safecache.settings import config
from safecache.tiers import fallback

__all__ = [
    "LARGEST",
    "LONGEST_TEXT",
    "MOST_FILES",
    "Time",
    "collect_stats",
    "count",
    "get_counts",
    "is_journal_name",
    "leave_to_others",
    "list_time_labels",
    "make_label",
    "make_observed_label",
    "make_time_label",
    "observe",
    "write",
]


# With the time first: so the oldest is the first by name.
_NAME = re.compile(r"\d{8}T\d{6}-\d+-[0-9a-f]+\.jsonl")
# Bytes in a file: some 600 lines. What comes then is counted. And files in a directory: the oldest go.
LARGEST = 1 << 18
MOST_FILES = 1000
# Letters of a text, such as of upstream's reason for a bypass.
LONGEST_TEXT = 300
# Seconds from the first of some hits until they are written: they come in bursts.
_PAUSE = 1.0
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


# What is journaled of what is counted; LEFT_TO_OTHERS has a line of its own.
_JOURNALED = frozenset(each.value for each in (*OF_REMOTE, Count.WAITED_IN_VAIN, *OF_RECOMPILE_CHECK))

_counts: Part[Counter[str]] = Part(Counter)


class _Journal:
    """Journal of this process: its path, its size, and what was counted since the last write."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.path = ""
        self.size = 0
        self.root = ""
        self.counted: Counter[str] = Counter()
        self.awaits_end = False
        self.is_awaited = False
        self.has_failed = False

    def end(self) -> None:
        """Write what is counted."""
        with self.lock:
            if self.counted:
                _append_line({}, 2 * LARGEST)


# A child has a journal of its own, and has looked up nothing.
_journal: Part[_Journal] = Part(_Journal)


def is_journal_name(name: str) -> bool:
    """Tell whether ``name`` is the file name of a journal."""
    return _NAME.fullmatch(name) is not None


def count(label: str, root: str, number: int = 1) -> None:
    """Add to what is written under ``label`` with the next line, or soon."""
    with _journal.now.lock:
        _journal.now.counted[label] += number
        _journal.now.root = _journal.now.root or root
        if not _journal.now.awaits_end:
            _await_end()
        if not _journal.now.is_awaited:
            _journal.now.is_awaited = True
            _write_soon()


def write(label: str, root: str, line: dict[str, object]) -> None:
    """Write a line about a lookup in the cache ``root``; what cannot be written is counted under ``label``."""
    shortened = {name: text[:LONGEST_TEXT] if isinstance(text, str) else text for name, text in line.items()}
    with _journal.now.lock:
        _journal.now.root = _journal.now.root or root
        if not _append_line(shortened, LARGEST):
            _journal.now.counted[label] += 1
        if not _journal.now.awaits_end:
            _await_end()


def leave_to_others(left: LeftToOthers) -> None:
    """Observer: write a line about it."""
    line = {"key": left.ref.key, "waited": round(left.waited, 3), "took": round(left.took, 3)}
    write(Count.LEFT_TO_OTHERS.value, left.ref.root, line)


def _await_end() -> None:
    _journal.now.awaits_end = True
    call_at_exit(_end_journal)


def _write_soon() -> None:
    with suppress(RuntimeError):  # no thread can be started, such as while the interpreter ends: then that writes it
        threading.Thread(target=_write_counted, name="safecache-journal", daemon=True).start()


def _write_counted() -> None:
    """Write what is counted for as long as something is; half of a file is left to what misses."""
    while _journal.now.is_awaited:
        time.sleep(_PAUSE)
        with _journal.now.lock:
            _journal.now.is_awaited = bool(_journal.now.counted) and _append_line({}, LARGEST // 2)


def _end_journal() -> None:
    _journal.now.end()


def _append_line(line: dict[str, object], limit: int) -> bool:
    """Write ``line`` and what was counted; False if it cannot be, or the file would be larger than ``limit``."""
    if not (config.cache_directory() or _journal.now.root):
        return False  # a lookup in no cache yet: there is nowhere to tell of it
    who = {"run": config.run_id(), "host": os.uname().nodename, "pid": os.getpid(), "rank": events.find_rank()}
    values = {"time": round(time.time(), 3)} | who | line | {"counts": dict(_journal.now.counted)}
    content = json.dumps(values).encode() + b"\n"
    if _journal.now.size + len(content) > limit:
        return False
    try:
        _write_content(content)
    except OSError as error:
        # Each lookup tries it again, and a server may show all that is no debugging.
        level = logging.DEBUG if _journal.now.has_failed else logging.INFO
        _journal.now.has_failed = True
        events.log_line(level, f"safecache: the journal {_journal.now.path} was not written: {error.strerror}")
        return False
    _journal.now.size += len(content)
    _journal.now.counted.clear()
    return True


def _write_content(content: bytes) -> None:
    if not _journal.now.path:
        cache = config.cache_directory() or _journal.now.root
        # A fallback directory is removed with the process.
        cache = fallback.find_original(cache) or cache
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{moment}-{os.getpid()}-{os.urandom(6).hex()}.jsonl"
        _journal.now.path = metadata.make_path(cache, metadata.JOURNAL, name)
        os.makedirs(cache, exist_ok=True)  # as torch does, which a process that only uses Triton does not ask to
        with _open_folder() as folder:
            names = sorted(filter(is_journal_name, folder.list_names()))
            for oldest in names[: max(0, len(names) - MOST_FILES + 1)]:
                with suppress(OSError):  # another process has removed it, or it is another user's
                    folder.unlink(oldest)
    # Each time: the directory may be removed, and a descriptor that is kept is one less for the program.
    descriptor = filesystem.retry(_open_journal, filesystem.PASSING)
    try:
        filesystem.write_all(descriptor, content)
    finally:
        filesystem.close(descriptor)


def _open_folder() -> AbstractContextManager[Folder]:
    directory = os.path.dirname(_journal.now.path)
    return folders.open_directory(
        directory.removesuffix(metadata.make_path("", metadata.JOURNAL)), directory, make=True
    )


def _open_journal() -> int:
    with _open_folder() as folder:
        return folder.open(os.path.basename(_journal.now.path), _APPEND)


def make_label(kind: Kind, outcome: Outcome, reason: Reason | None) -> str:
    """How lookups that came to the same are counted, such as "fx miss: never seen"."""
    return f"{kind.word} {outcome.value}" + (f": {reason.value}" if reason is not None else "")


def make_observed_label(kind: Kind, reason: Reason) -> str:
    """How what SAFECACHE=observe lets pass is counted, such as "kernel file would be refused: unsealed"."""
    return f"{kind.noun} would be refused: {reason.value}"


class Time(Enum):
    """Kind of time that is counted. SAVED: of compiles that hits spared, as entries state; SPENT: of saved compiles.

    HIT: of the hits themselves; WAITED: for torch's locks and for other processes' compiles.
    """

    SAVED = "ms saved"
    SPENT = "ms spent"
    HIT = "ms in hits"
    WAITED = "ms waited"


def make_time_label(kind: Kind, which: Time) -> str:
    """Return the label of counted milliseconds, such as "fx ms saved". AOTAutograd's include those of its graphs."""
    return f"{kind.word} {which.value}"


def list_time_labels() -> frozenset[str]:
    """Everything that times may be counted under: waits also for what is built."""
    built = make_time_label(Kind.NATIVE_CODE, Time.WAITED)
    return frozenset(make_time_label(kind, each) for kind in LOOKED_UP for each in Time) | {built}


def _add_seconds(ref: Ref, which: Time, seconds: float) -> None:
    if seconds >= 0.001:
        count(make_time_label(ref.kind, which), ref.root, int(seconds * 1000))


def collect_stats() -> dict[str, int]:
    """Return how often each event happened in this process, by label: events.read_counters() and counts()."""
    return events.read_counters() | get_counts()


def get_counts() -> dict[str, int]:
    """How many lookups of this process came to what, by label(); absent means none."""
    with _counts.lock:
        return dict(_counts.now)


def observe() -> None:
    """Start to count the lookups of this process, and to write its journal."""
    ports.observe(Lookup, _record_lookup)
    ports.observe(Saved, _add_saved)
    ports.observe(Waited, _add_waited)
    ports.observe(LeftToOthers, leave_to_others)
    ports.observe(Counted, _count_event)
    ports.observe(Observed, _keep_observed)


# Functions, not lambdas: whoever observes twice hears once.
def _add_saved(saved: Saved) -> None:
    _add_seconds(saved.ref, Time.SPENT, saved.seconds)


def _add_waited(waited: Waited) -> None:
    _add_seconds(waited.ref, Time.WAITED, waited.seconds)


def _count_event(counted: Counted) -> None:
    # A command that belongs to no run has no journal.
    if counted.name in _JOURNALED and config.run_id():
        count(counted.name, counted.root or config.cache_directory() or "", counted.number)


def _keep_observed(observed: Observed) -> None:
    line: dict[str, object] = {"key": observed.where, "observed": observed.kind.value, "reason": observed.reason.value}
    label = make_observed_label(observed.kind, observed.reason)
    write(label, config.cache_directory() or "", line | {"detail": observed.evidence})


def _record_lookup(lookup: Lookup) -> None:
    """Count a lookup; what was not a hit goes to the journal at once, and to torch's trace."""
    what, root = make_label(lookup.ref.kind, lookup.outcome, lookup.reason), lookup.ref.root
    with _counts.lock:
        _counts.now[what] += 1
    with report.contain_errors("the journal of lookups", "This lookup is not recorded."):
        ports.tell(Counted(what))
        if lookup.outcome is not Outcome.HIT:
            line: dict[str, object] = {
                "layer": lookup.ref.kind.word,
                "key": lookup.ref.key,
                "name": lookup.name,
                "outcome": lookup.outcome.value,
                "reason": lookup.reason.value if lookup.reason is not None else None,
                "detail": lookup.detail,
                "seconds": round(lookup.seconds, 6),
                "frame": lookup.frame,
            }
            write(what, root, line)
            events.write_artifact(f"{lookup.ref.kind.word} {lookup.outcome.value}", line)
            return
        count(what, root)
        if not lookup.is_part:
            _add_seconds(lookup.ref, Time.SAVED, lookup.saved)
            _add_seconds(lookup.ref, Time.HIT, lookup.seconds)
