"""After a loss of power a lookup finds the old entry, the new one, or a miss that the next save heals."""

from __future__ import annotations

import os
import shutil

import pytest

from faults.store.disk import Recorder, after_loss
from safecache.entries import loading
from safecache.fs import temporaries
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.signing import keyring, seal
from safecache.store import entry_files

KEY = "the key"


@pytest.fixture
def entry(tmp_path):
    return tmp_path / "cache" / "fxgraph" / "ke" / KEY / "entry"


def sealed(text):
    """An entry of a few pages, the last of them not full."""
    return seal.attach(text * 1500, Kind.FX_ENTRY, KEY, keyring.current().signing, {})


def recorded_put(entry, calls, old):
    """What a put did, event by event."""
    root = entry.parents[3]
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    temporaries._reaped.reset()
    if old is not None:
        entry_files.publish(str(entry), old, str(root))
        temporaries._reaped.reset()
    recorder = Recorder()
    calls.seen = recorder
    entry_files.publish(str(entry), sealed(b"new "), str(root))
    calls.seen = lambda call: None
    return recorder.events


def looked_up(entry, content):
    """What a lookup takes, with this found on the disk; None for a miss."""
    root = entry.parents[3]
    shutil.rmtree(root)
    entry.parent.mkdir(parents=True)
    if content is not None:
        entry.write_bytes(content)
    found = loading.read_unverified(Kind.FX_ENTRY, str(entry))
    admitted = found is not None and loading.accept_or_quarantine(
        Ref(Kind.FX_ENTRY, KEY, str(root)), found, path=str(entry)
    )
    return found if admitted else None


THERE = pytest.mark.parametrize("there", [True, False], ids=["replaced", "first"])


@THERE
@pytest.mark.parametrize("waits", ["always", "never"])
def test_lookup_after_a_loss_of_power_finds_old_or_new_or_a_miss_that_heals(entry, calls, settings, waits, there):
    settings(SAFECACHE_FSYNC=waits)
    old, new = sealed(b"old ") if there else None, sealed(b"new ")
    events = recorded_put(entry, calls, old)
    root = str(entry.parents[3])
    found = {content for end in range(len(events) + 1) for content in after_loss(events[:end], str(entry), root, old)}
    assert {old, new} <= found
    results = set()
    for content in found:
        result = looked_up(entry, content)
        assert result in (old, new, None)
        results.add(result)
        if result is None:
            assert not entry.exists()
            entry_files.publish(str(entry), new, root)
            assert looked_up(entry, entry.read_bytes()) == new
    # Who does not wait can lose the old entry as well: its name may be with the new file before the data is.
    assert (None in results) == (waits == "never" or not there)


@THERE
def test_what_was_put_and_waited_for_is_there_after_a_loss_of_power(entry, calls, settings, there):
    """With the directories that were made for it."""
    settings(SAFECACHE_FSYNC="always")
    old = sealed(b"old ") if there else None
    events = recorded_put(entry, calls, old)
    assert after_loss(events, str(entry), str(entry.parents[3]), old) == {sealed(b"new ")}


def test_what_another_process_made_on_the_way_is_waited_for_too(entry, calls, settings):
    """It may be killed before it has come to wait for that itself."""
    settings(SAFECACHE_FSYNC="always")
    root = entry.parents[3]
    root.mkdir()
    recorder = Recorder()
    calls.seen = recorder
    for directory in (entry.parents[2], entry.parents[1], entry.parent):
        entry_files.filesystem.mkdir(str(directory))
    entry_files.publish(str(entry), sealed(b"new "), str(root))
    calls.seen = lambda call: None
    assert after_loss(recorder.events, str(entry), str(root), None) == {sealed(b"new ")}


def test_old_entry_is_never_lost_by_who_waits(entry, calls, settings):
    settings(SAFECACHE_FSYNC="always")
    old = sealed(b"old ")
    events = recorded_put(entry, calls, old)
    for end in range(len(events) + 1):
        found = after_loss(events[:end], str(entry), str(entry.parents[3]), old)
        assert found <= {old, sealed(b"new ")}, events[end - 1]


def test_root_that_was_made_for_it_is_waited_for(entry, calls, settings):
    settings(SAFECACHE_FSYNC="always")
    recorder = Recorder()
    calls.seen = recorder
    entry_files.publish(str(entry), sealed(b"new "), str(entry.parents[3]))
    calls.seen = lambda call: None
    above = str(entry.parents[4])
    assert after_loss(recorder.events, str(entry), above, None) == {sealed(b"new ")}


def test_model_finds_torn_and_empty_files_where_nothing_was_waited_for(entry, calls, settings):
    settings(SAFECACHE_FSYNC="never")
    new = sealed(b"new ")
    events = recorded_put(entry, calls, None)
    found = after_loss(events, str(entry), str(entry.parents[3]), None)
    assert {None, b"", new, bytes(len(new)), new[:4096], bytes(4096) + new[4096:]} <= found
    assert os.path.exists(entry)
