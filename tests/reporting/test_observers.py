"""What happens is told to observers, of whom none can end a compile or go on to fail."""

from __future__ import annotations

import pytest

from safecache import ports
from safecache.errors import CacheReadError, EntryRefusedError
from safecache.places.refs import Ref
from safecache.ports import Counted, Published, Saved
from safecache.reporting import events, report
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal

PUBLISHED = Published("/cache")


@pytest.fixture(autouse=True)
def observers(monkeypatch):
    monkeypatch.setattr(events, "_observers", {})


def test_each_hears_events_of_its_type_once():
    heard = []
    for _ in range(2):
        ports.observe(Published, heard.append)
    ports.tell(PUBLISHED)
    ports.tell(Saved(Ref(Kind.FX_ENTRY, "a")))
    assert heard == [PUBLISHED]
    ports.stop_observing(Published, heard.append)
    ports.tell(PUBLISHED)
    assert heard == [PUBLISHED]


@pytest.mark.parametrize("event", [PUBLISHED, Counted("a")], ids=["any", "what is counted, as the failure is"])
def test_one_that_fails_is_reported_and_told_no_more_and_the_others_hear(event, caplog):
    calls, heard = [], []

    def fail(event):
        calls.append(event)
        raise OSError("no space")

    ports.observe(type(event), fail)
    ports.observe(type(event), heard.append)
    for _ in range(3):
        ports.tell(event)
    assert len(calls) == 1 and heard.count(event) == 3
    (line,) = caplog.messages
    assert __name__ in line and "no space" in line and "feature failed" in line


def test_strict_mode_raises_what_an_observer_does(settings):
    settings(SAFECACHE_STRICT=1)

    def fail(_):
        raise OSError("no space")

    ports.observe(Published, fail)
    with pytest.raises(CacheReadError, match="no space"):
        ports.tell(PUBLISHED)


def test_errors_of_strict_mode_pass_each_time(settings):
    settings(SAFECACHE_STRICT=1)

    def refuse(_):
        report.refuse(Refusal(Reason.DAMAGED, "it is cut"), Kind.FX_ENTRY, "here")

    ports.observe(Published, refuse)
    for _ in range(2):
        with pytest.raises(EntryRefusedError):
            ports.tell(PUBLISHED)


def test_counts_come_with_what_is_known_of_them():
    heard = []
    ports.observe(Counted, heard.append)
    events.count(Count.ISOLATED, seconds=2.0)
    assert heard == [Counted(Count.ISOLATED.value, 1, 2.0)]
