"""A beat proves that a holder lives if a trusted key has sealed it for this lease, just now, and another one follows."""

from __future__ import annotations

import threading
import time

import pytest

from safecache import session
from safecache.reporting import waits
from safecache.signing import heartbeats, side_records
from safecache.signing.heartbeats import Beats, Listener

SUBJECT = "lease fx-1"


@pytest.fixture(autouse=True)
def now(isolated, monkeypatch):
    """The time, which goes on as a test says."""
    session.reset()
    times = [1000.0, time.time()]
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: times[0])
    monkeypatch.setattr(heartbeats.time, "time", lambda: times[1])

    def go_on(seconds):
        times[0] += seconds
        times[1] += seconds

    yield go_on
    session.reset()


@pytest.fixture
def beats():
    return Beats(SUBJECT, 12.0)


def test_count_that_rises_is_a_proof_and_goes_on_for_as_long_as_it_does(beats, now):
    listener = Listener(SUBJECT)
    assert listener.hear(beats.make_next()) and not listener.is_proven
    for _ in range(100):
        now(1.9)
        assert listener.hear(beats.make_next()) and listener.is_proven
    assert listener.began == 12.0


def test_holder_that_was_never_heard_twice_is_none_after_two_seconds(beats, now):
    listener, beat = Listener(SUBJECT), beats.make_next()
    assert listener.hear(beat)
    now(waits.UNPROVEN - 0.1)
    assert listener.hear(beat) and not listener.is_proven
    now(0.2)
    assert not listener.hear(beat)
    other = Listener("lease fx-2")
    assert not other.hear(Beats("lease fx-2", 0.0).make_next()), "that process is known to be silent"


def test_holder_that_is_heard_no_more_is_none(beats, now):
    listener = Listener(SUBJECT)
    listener.hear(beats.make_next())
    last = beats.make_next()
    assert listener.hear(last)
    now(heartbeats.LAPSE - 0.1)
    assert listener.hear(last)
    now(0.2)
    assert not listener.hear(last)


def test_beats_that_were_recorded_prove_nothing_a_minute_later(beats, now):
    recorded = [beats.make_next() for _ in range(3)]
    now(heartbeats.FRESH + 1)
    assert not any(Listener(SUBJECT).hear(beat) for beat in recorded)


def test_beats_that_come_again_are_no_rise(beats, now):
    """Several that were recorded, in turn, or backwards."""
    listener, recorded = Listener(SUBJECT), [beats.make_next() for _ in range(3)]
    listener.hear(recorded[2])
    for _ in range(4):
        now(0.4)
        assert not (listener.hear(recorded[1]) and listener.is_proven)
    now(0.5)
    assert not listener.hear(recorded[0])


FORGED = {
    "nothing": b"",
    "held": b"held",
    "unsealed": b'{"process": "x", "count": 1, "at": 0, "began": 0}',
    "other lease": lambda: Beats("lease fx-2", 0.0).make_next(),
    "no count": lambda: side_records.seal_record(SUBJECT, {"process": "x", "at": time.time(), "began": 0}),
    "no number": lambda: side_records.seal_record(
        SUBJECT, {"process": "x", "count": [], "at": time.time(), "began": 0}
    ),
    "no time": lambda: side_records.seal_record(SUBJECT, {"process": "x", "count": 1, "at": float("nan"), "began": 0}),
    "later": lambda: side_records.seal_record(
        SUBJECT, {"process": "x", "count": 1, "at": time.time() + 3600, "began": 0}
    ),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_what_is_no_beat_is_waited_for_by_nobody(forged):
    assert not Listener(SUBJECT).hear(forged() if callable(forged) else forged)


def test_process_without_a_key_has_no_heart(beats, monkeypatch):
    monkeypatch.setattr(side_records, "seal_record", lambda *_: None)
    assert beats.make_next() is None


def test_thread_lives_while_a_lease_is_held(monkeypatch):
    monkeypatch.undo()
    renewals, called = heartbeats.Renewals("test-renewals", 0.01), threading.Semaphore(0)

    def threads():
        return [each for each in threading.enumerate() if each.name == "test-renewals"]

    for _ in range(2):
        renewals.begin("one", called.release)
        renewals.begin("two", called.release)
        assert len(threads()) == 1
        for _ in range(4):
            assert called.acquire(timeout=60)
        renewals.end("one")
        renewals.end("two")
        for each in threads():
            each.join(60)
        assert not threads()
