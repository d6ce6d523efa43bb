"""Records of keys with a local tier: in the shared one too, so that the next node's miss is explained by this one's."""

from __future__ import annotations

import errno
import json
import os
import time

import pytest
from helpers.fresh import forget_levels

from safecache import explain
from safecache.explain import key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.fs import filesystem
from safecache.places.refs import Ref
from safecache.ports import Saved, tell
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.tiers import fallback, levels

KEY, OTHER = "a" + "b" * 51, "a" + "c" * 51


def record(key=KEY, value="False", made=0.0):
    return KeyRecord(Kind.AOT_ENTRY, key, "model.f", made, (Component("torch", value, value),))


@pytest.fixture
def next_node(shared, local, settings, monkeypatch, tmp_path):
    """What another node calls its local tier; to be called once the first has done its work."""

    def begin():
        config.end_redirection()
        forget_levels()
        settings(SAFECACHE_LOCAL=tmp_path / "other")
        fallback.ensure_cache_directory(lambda: str(shared))
        return config.cache_directory()

    return begin


def test_record_is_in_both_levels_and_is_one(shared, local):
    key_records.remember(record(), local)
    [path] = shared.rglob("*.json.gz")
    assert os.path.exists(levels._state.now.levels[local].place + str(path).removeprefix(str(shared)))
    assert [found.key for found in key_records.list_records(local)] == [KEY]
    assert [found.key for found in key_records.list_records(str(shared))] == [KEY]


def test_record_of_a_kernel_is_where_kernels_of_the_device_are(shared, local):
    key_records.remember(record("A" * 52)._replace(kind=Kind.KERNEL), f"{local}/triton/0")
    assert [found.key for found in key_records.list_records(f"{shared}/triton/0")] == ["A" * 52]


def test_other_node_knows_what_the_first_has_saved(shared, local, next_node):
    key_records.remember(record(), local)
    other = next_node()
    assert other != local and not os.path.exists(f"{other}/.safecache/keys")
    assert key_records.find_absence_reason(Ref(Kind.AOT_ENTRY, OTHER, other), "model.f") is Reason.KEY_DIFFERS
    assert key_records.find_absence_reason(Ref(Kind.AOT_ENTRY, KEY, other), "model.f") is Reason.EVICTED
    assert [found.key for found in key_records.list_records(other)] == [KEY]


def test_entry_that_another_node_had_saved_was_there_once(shared, local, next_node):
    key_records.remember(record(), local)
    [first] = key_records.list_records(str(shared))
    other = next_node()
    key_records.remember(record(made=time.time()), other)
    for found in (*key_records.list_records(str(shared)), *key_records.list_records(other)):
        assert found.first == first.made < found.made


def test_nodes_that_were_cold_together_have_lost_nothing(shared, local, next_node):
    missed = time.time()
    key_records.remember(record(made=missed), local)
    before = key_records.list_records(str(shared))
    key_records.remember(record(made=missed), next_node())
    assert key_records.list_records(str(shared)) == before


@pytest.mark.parametrize("strict", ["", "1"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_shared_level_that_takes_no_record_costs_nothing(shared, local, settings, monkeypatch, caplog, error, strict):
    settings(SAFECACHE_LOCAL=os.path.dirname(os.path.dirname(local)), SAFECACHE_STRICT=strict)
    open_ = filesystem.open
    tried = []

    def fail(path, flags, *rest, **named):
        above = os.readlink(f"/proc/self/fd/{named['dir_fd']}") if "dir_fd" in named else ""
        if os.path.join(above, path).startswith(str(shared)) and flags & os.O_CREAT:
            tried.append(path)
            raise OSError(error, os.strerror(error))
        return open_(path, flags, *rest, **named)

    monkeypatch.setattr(filesystem, "open", fail)
    explain.note_miss(Ref(Kind.AOT_ENTRY, KEY, local), "model.f", ())
    tell(Saved(Ref(Kind.AOT_ENTRY, KEY, local)))
    assert tried and [found.key for found in key_records.list_records(local)] == [KEY] and not caplog.records
    tried.clear()
    levels.leave_alone(str(shared), reading=False)
    key_records.remember(record(OTHER), local)
    assert not tried and len(key_records.list_records(local)) == 2


@pytest.mark.parametrize("redirected", [True, False], ids=["process", "command"])
def test_explain_compares_a_miss_of_this_node_with_what_others_have_saved(
    shared, local, next_node, run, redirected, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nowhere")
    key_records.remember(record(), local)
    other = next_node()
    monkeypatch.setattr(levels, "is_left_alone", lambda *_, reading: not reading)  # only this node has the next
    key_records.remember(record(OTHER, "True"), other)
    if not redirected:
        config.end_redirection()
        forget_levels()
    first, second = json.loads(run("explain", "--json").out)["misses"]
    assert (first["key"], second["key"]) == (OTHER, KEY)
    assert first["differences"] == [{"what": "torch", "before": "False", "after": "True"}]


def test_explain_tells_of_the_shared_level_where_this_node_has_none_yet(shared, local, next_node, run, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nowhere")
    key_records.remember(record(), local)
    os.rmdir(next_node())
    config.end_redirection()
    for where in ((), ("--dir", shared)):
        [row] = json.loads(run("explain", "--json", *where).out)["misses"]
        assert (row["key"], row["reason"]) == (KEY, "never seen")
