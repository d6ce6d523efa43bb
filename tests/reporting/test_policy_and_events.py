"""What follows from an event, in both modes; said once, counted always, and raised with its cause where strict."""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import suppress

import pytest

from safecache.errors import (
    CacheReadError,
    CacheWriteError,
    EntryRefusedError,
    ExecutionError,
    KeyringError,
    MissError,
    SafecacheError,
    UnpicklableEntryError,
)
from safecache.reporting import events
from safecache.reporting.kinds import Count, Reason
from safecache.reporting.report import suggest_fix

MOVED, LEFT = True, False
SAID, SILENT = True, False
TABLE = {
    Reason.UNSEALED: (LEFT, SAID, EntryRefusedError),
    Reason.UNKNOWN_KEY: (LEFT, SAID, EntryRefusedError),
    Reason.UNKNOWN_FORMAT: (LEFT, SAID, EntryRefusedError),
    Reason.DAMAGED: (MOVED, SAID, EntryRefusedError),
    Reason.BAD_SEAL: (MOVED, SAID, EntryRefusedError),
    Reason.OTHER_KIND: (MOVED, SAID, EntryRefusedError),
    Reason.OTHER_CACHE_KEY: (MOVED, SAID, EntryRefusedError),
    Reason.REVOKED_KEY: (LEFT, SAID, EntryRefusedError),
    Reason.EXPIRED_KEY: (LEFT, SAID, EntryRefusedError),
    Reason.OTHER_NAMESPACE: (LEFT, SAID, EntryRefusedError),
    Reason.KEY_NOT_ALLOWED: (LEFT, SAID, EntryRefusedError),
    Reason.NOT_PRIVATE: (LEFT, SAID, EntryRefusedError),
    Reason.NOT_A_FILE: (LEFT, SAID, EntryRefusedError),
    Reason.FOREIGN_OWNER: (LEFT, SAID, EntryRefusedError),
    Reason.TOO_LARGE: (LEFT, SAID, EntryRefusedError),
    Reason.OTHER_CPU: (LEFT, SAID, EntryRefusedError),
    Reason.OTHER_GPU: (MOVED, SAID, EntryRefusedError),
    Reason.OTHER_BUILD: (MOVED, SAID, EntryRefusedError),
    Reason.OUTDATED: (LEFT, SILENT, None),
    Reason.STALE: (MOVED, SAID, EntryRefusedError),
    Reason.EMPTY: (LEFT, SAID, EntryRefusedError),
    Reason.OTHER_RANK: (LEFT, SILENT, None),
    Reason.WRONG_TYPE: (MOVED, SAID, EntryRefusedError),
    Reason.UNSAFE_NAME: (LEFT, SAID, EntryRefusedError),
    Reason.EXPOSED_DIRECTORY: (LEFT, SAID, EntryRefusedError),
    Reason.UNREADABLE: (LEFT, SAID, CacheReadError),
    Reason.UNLOADABLE: (LEFT, SAID, CacheReadError),
    Reason.REMOTE_FAILED: (LEFT, SAID, CacheReadError),
    Reason.ENTRY_MISSING: (LEFT, SAID, CacheReadError),
    Reason.NEVER_SEEN: (LEFT, SILENT, None),
    Reason.KEY_DIFFERS: (LEFT, SILENT, None),
    Reason.EVICTED: (LEFT, SILENT, None),
    Reason.GUARD_FAILED: (LEFT, SILENT, None),
    Reason.OTHER_RANK_MISSED: (LEFT, SILENT, None),
    Reason.SAMPLED: (LEFT, SILENT, None),
    Reason.UPSTREAM_BYPASS: (LEFT, SILENT, None),
    Reason.DISABLED: (LEFT, SILENT, None),
    Reason.LOOKUP_FAILED: (LEFT, SILENT, None),
    Reason.FEATURE_FAILED: (LEFT, SAID, CacheReadError),
    Reason.UNPICKLABLE: (LEFT, SAID, UnpicklableEntryError),
    Reason.UNPREPARED: (LEFT, SAID, UnpicklableEntryError),
    Reason.NOT_CACHEABLE: (LEFT, SAID, UnpicklableEntryError),
    Reason.INCOMPLETE: (LEFT, SILENT, None),
    Reason.UNWRITABLE: (LEFT, SAID, CacheWriteError),
    Reason.UNUSABLE_DIRECTORY: (LEFT, SAID, CacheWriteError),
    Reason.LOCK_HELD: (LEFT, SAID, CacheWriteError),
    Reason.NOT_EXECUTABLE: (LEFT, SAID, ExecutionError),
    Reason.EXEC_DIR_UNUSABLE: (LEFT, SAID, ExecutionError),
    Reason.NO_KEY: (LEFT, SAID, KeyringError),
    Reason.KEY_REFUSED: (LEFT, SAID, None),
    Reason.NOT_TRIMMED: (LEFT, SAID, None),
    Reason.STOOD_DOWN: (LEFT, SAID, None),
    Reason.NOT_ISOLATED: (LEFT, SAID, None),
    Reason.CRASHED: (LEFT, SAID, None),
    Reason.CRASHED_BEFORE: (LEFT, SAID, None),
    Reason.CRASHED_RUN: (MOVED, SAID, EntryRefusedError),
    Reason.FAILED_RUN: (MOVED, SAID, None),
    Reason.NOT_EXPLAINED: (LEFT, SAID, None),
    Reason.REMOTE_UNAVAILABLE: (LEFT, SAID, None),
    Reason.DIFFERS: (MOVED, SAID, None),
    Reason.NOT_RECOMPILED: (LEFT, SAID, None),
}
BY_REASON = pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.value.replace(" ", "-"))


def test_every_reason_is_in_the_table():
    assert TABLE.keys() == set(Reason)


@BY_REASON
def test_strict_mode_raises_what_the_table_says(reason):
    assert events.decide_action(reason, strict=True) == TABLE[reason]


@BY_REASON
def test_default_mode_never_raises_and_does_the_rest_alike(reason):
    assert events.decide_action(reason, strict=False) == (*TABLE[reason][:2], None)


@BY_REASON
def test_default_mode_warns_once_and_counts_every_time(reason, caplog):
    for _ in range(3):
        events.report(reason, "what happened.", cause="a cause", remedy="The remedy.")
    text = f"safecache: what happened. [{reason.value}] The remedy. (logged once per process; see {reason.help})"
    text += f" [pid {os.getpid()}]"
    said = TABLE[reason][1]
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("safecache", logging.WARNING, text)
    ] * said
    assert events.read_counters() == {reason.value: 3}


def test_line_says_what_happened_why_what_follows_and_what_helps(caplog):
    events.report(Reason.UNWRITABLE, "could not save K", why="P: no space", remedy="Recompiling. Help: gc")
    [line] = caplog.messages
    assert line.startswith("safecache: could not save K [unwritable]: P: no space. Recompiling. Help: gc (logged once")


ERRNOS = ["ENOSPC", "EDQUOT", "EACCES", "EROFS", "EIO", "ESTALE", "EMFILE"]


def test_each_error_of_a_write_has_a_remedy_of_its_own():
    fixes = {name: suggest_fix(OSError(getattr(errno, name), "no"), "VARIABLE") for name in ERRNOS}
    assert len(set(fixes.values())) == len(ERRNOS)
    assert all("VARIABLE" in fix for name, fix in fixes.items() if name != "EMFILE"), fixes
    assert f"uid {os.geteuid()}" in fixes["EACCES"] and "safecache gc" in fixes["ENOSPC"]
    assert suggest_fix(OSError("no number")) == "Help: set TORCHINDUCTOR_CACHE_DIR to a directory that can be written"


@pytest.mark.parametrize("reason", [r for r, row in TABLE.items() if row[2]], ids=lambda reason: reason.value)
def test_strict_mode_raises_with_the_cause_every_time_and_warns_never(reason, settings, caplog):
    settings(SAFECACHE_STRICT=1)
    cause = ValueError("the cause")
    for _ in range(2):
        with pytest.raises(SafecacheError) as caught:
            events.report(reason, "what happened.", remedy="The remedy.", error=cause)
        assert type(caught.value) is TABLE[reason][2]
        assert caught.value.__cause__ is cause
        assert str(caught.value) == f"safecache: what happened. [{reason.value}] The remedy. (see {reason.help})"
    assert events.read_counters() == {reason.value: 2} and not caplog.records


@pytest.mark.parametrize("reason", [r for r, row in TABLE.items() if not row[2]], ids=lambda reason: reason.value)
def test_strict_mode_does_not_raise_what_was_raised_elsewhere_or_cannot_be_helped(reason, settings):
    settings(SAFECACHE_STRICT=1)
    events.report(reason, "what happened.")
    assert events.read_counters() == {reason.value: 1}


def test_every_cause_and_every_reason_is_said(caplog):
    for reason in (Reason.DAMAGED, Reason.UNREADABLE):
        for cause in ("one", "other", "one"):
            events.report(reason, f"{reason.value} {cause}", cause=cause)
    assert [record.getMessage().split(" [")[0] for record in caplog.records] == [
        f"safecache: {text}" for text in ("damaged one", "damaged other", "unreadable one", "unreadable other")
    ]


def test_reset_forgets_counters_and_warnings(caplog):
    for _ in range(2):
        events.report(Reason.DAMAGED, "it is damaged")
        events._state.reset()
    assert len(caplog.records) == 2 and events.read_counters() == {}


def test_counters_are_a_copy():
    events.count(Count.SAVED)
    events.read_counters()["saved"] = 100
    assert events.read_counters() == {"saved": 1}


def test_no_two_counters_share_a_name():
    names = [member.value for member in (*Count, *Reason)]
    assert len(names) == len(set(names))


def test_threads_lose_no_count_and_say_it_once(caplog):
    def report_often():
        for _ in range(500):
            events.report(Reason.DAMAGED, "it is damaged")

    threads = [threading.Thread(target=report_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events.read_counters() == {"damaged": 2000} and len(caplog.records) == 1


def test_first_of_what_nobody_may_swallow_leaves_each_block_that_it_was_raised_in():
    with pytest.raises(MissError, match="first"), events.propagate_strict():
        for text in ("first", "second"):
            with suppress(MissError):
                events.raise_strict(MissError(text))
    with events.propagate_strict(), suppress(MissError):
        raise MissError("that somebody may swallow")
