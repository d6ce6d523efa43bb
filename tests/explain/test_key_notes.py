"""A miss is kept until its compile is saved, and nothing that goes wrong with its record is the compile's trouble."""

from __future__ import annotations

import itertools
import os

import pytest

from safecache import explain, session
from safecache.explain import key_records
from safecache.explain.key_records import Component
from safecache.places.refs import Ref
from safecache.ports import Saved, tell
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config

KEY = "a" + "b" * 51
PARTS = (Component("torch", "01", "2.15"),)


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


@pytest.fixture(autouse=True)
def nothing_waits():
    session.reset()
    yield
    session.reset()


def test_record_is_written_once_the_compile_is_saved_and_not_before(root):
    explain.note_miss(Ref(Kind.AOT_ENTRY, KEY, root), "model.f", PARTS)
    assert key_records.list_records(root) == []
    tell(Saved(Ref(Kind.AOT_ENTRY, KEY, root)))
    assert [record.components for record in key_records.list_records(root)] == [PARTS]


def test_save_without_a_miss_writes_nothing(root):
    tell(Saved(Ref(Kind.AOT_ENTRY, KEY, root)))
    explain.note_miss(Ref(Kind.AOT_ENTRY, KEY, root), "model.f", PARTS)
    tell(Saved(Ref(Kind.FX_ENTRY, KEY, root)))
    assert os.listdir(root) == []
    tell(Saved(Ref(Kind.AOT_ENTRY, KEY, root)))
    os.unlink(next(os.path.join(at, name) for at, _, names in os.walk(root) for name in names))
    tell(Saved(Ref(Kind.AOT_ENTRY, KEY, root)))
    assert key_records.list_records(root) == []


def test_compiles_that_are_never_saved_do_not_pile_up(root):
    keys = ["a" + "".join(letters) for letters in itertools.islice(itertools.product("bcde", repeat=51), 1000)]
    for key in keys:
        explain.note_miss(Ref(Kind.AOT_ENTRY, key, root), "model.f", PARTS)
    tell(Saved(Ref(Kind.AOT_ENTRY, keys[0], root)))
    tell(Saved(Ref(Kind.AOT_ENTRY, keys[-1], root)))
    assert [record.key for record in key_records.list_records(root)] == [keys[-1]]


def test_record_that_cannot_be_written_says_nothing_and_fails_nothing(root, caplog):
    with open(os.path.join(root, ".safecache"), "w"):
        pass
    explain.note_miss(Ref(Kind.AOT_ENTRY, KEY, root), "model.f", PARTS)
    tell(Saved(Ref(Kind.AOT_ENTRY, KEY, os.path.join(root, ".safecache", "cache"))))
    assert caplog.text == ""


@pytest.mark.parametrize("strict", ["0", "1"])
def test_key_that_is_not_understood_is_one_warning_also_in_strict_mode(monkeypatch, caplog, strict):
    monkeypatch.setenv("SAFECACHE_STRICT", strict)
    config.reload()
    events._state.reset()
    for _ in range(3):
        with explain.contain_failures(Kind.FX_ENTRY):
            raise AttributeError("torch is not as it was")
    assert caplog.text.count("torch is not as it was") == 1
    assert events.read_counters() == {Reason.NOT_EXPLAINED.value: 3}


def test_interrupt_passes_through():
    with pytest.raises(KeyboardInterrupt), explain.contain_failures(Kind.FX_ENTRY):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("wanted", "lines"), [("0", 0), ("1", 1)])
def test_miss_is_explained_at_once_only_if_that_is_asked_for(root, monkeypatch, caplog, wanted, lines):
    monkeypatch.setenv("SAFECACHE_EXPLAIN", wanted)
    config.reload()
    explain.note_miss(Ref(Kind.AOT_ENTRY, KEY, root), "model.f", PARTS)
    assert caplog.text.count("AOTAutograd entry of model.f: nothing was ever saved under this name") == lines
