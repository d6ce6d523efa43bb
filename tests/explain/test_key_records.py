"""Records of keys: what was saved is remembered, what is no record is passed over, and nobody is made to read much."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest

from safecache.explain import explanations, key_records
from safecache.explain.key_records import Component, KeyRecord
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config

KEY = "a" + "b" * 51
OTHER = "a" + "c" * 51
PARTS = (Component("torch", "01", "2.15"), Component("graph line", "02", "return x"))


def record(key=KEY, name="model.f", kind=Kind.AOT_ENTRY, **fields):
    return KeyRecord(kind, key, name, 0.0, PARTS)._replace(**fields)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "cache").mkdir()
    return str(tmp_path / "cache")


def path_of(root):
    [path] = Path(root, ".safecache", "keys").glob("*/*/*")
    return path


def test_record_is_recalled_as_it_was_with_the_time_of_its_save(root):
    before = time.time()
    key_records.remember(record(process="1"), root)
    found = key_records.recall(Ref(Kind.AOT_ENTRY, KEY, root), "model.f")
    assert found == record(process="1", made=found.made, first=found.made, took=found.made)
    assert before <= found.made <= time.time()
    assert (
        key_records.list_records(root)
        == key_records.list_same_name(Ref(Kind.AOT_ENTRY, root=root), "model.f")
        == [found]
    )


def test_second_save_of_a_key_keeps_the_time_of_the_first(root):
    key_records.remember(record(), root)
    first = key_records.recall(Ref(Kind.AOT_ENTRY, KEY, root), "model.f")
    key_records.remember(record(made=time.time()), root)
    again = key_records.recall(Ref(Kind.AOT_ENTRY, KEY, root), "model.f")
    assert first.made == again.first < again.made


def test_record_says_how_long_it_was_from_the_miss_to_the_save(root):
    key_records.remember(record(made=time.time() - 60), root)
    assert 60 <= key_records.recall(Ref(Kind.AOT_ENTRY, KEY, root), "model.f").took < 90
    key_records.remember(record(OTHER, made=time.time() + 60), root)
    assert key_records.recall(Ref(Kind.AOT_ENTRY, OTHER, root), "model.f").took == 0


def test_save_of_another_process_after_the_miss_is_no_eviction(root):
    """Both were cold: neither entry was ever gone."""
    missed = time.time() - 60
    key_records.remember(record(process="1", made=missed), root)
    first = key_records.list_records(root)
    key_records.remember(record(process="2", made=missed), root)
    assert key_records.list_records(root) == first


@pytest.mark.parametrize(
    ("kind", "key", "name", "expected"),
    [
        (Kind.AOT_ENTRY, KEY, "model.f", Reason.EVICTED),
        (Kind.AOT_ENTRY, OTHER, "model.f", Reason.KEY_DIFFERS),
        (Kind.AOT_ENTRY, KEY, "model.g", Reason.NEVER_SEEN),
        (Kind.FX_ENTRY, KEY, "model.f", Reason.NEVER_SEEN),
    ],
)
def test_reason_of_an_absence_follows_from_what_was_saved(root, kind, key, name, expected):
    key_records.remember(record(), root)
    assert key_records.find_absence_reason(Ref(kind, key, root), name) is expected


@pytest.mark.parametrize(("half", "compared"), [("backward", False), ("forward", True)])
def test_backward_graph_is_not_compared_with_a_forward_one_of_another_name(root, half, compared):
    key_records.remember(record(kind=Kind.FX_ENTRY, name="model.f forward"), root)
    missed = record(OTHER, f"model.g {half}", Kind.FX_ENTRY)
    explanation = explanations.explain(missed, root, saved=False)
    assert (explanation.nearest is not None) is compared and explanation.absence is Reason.NEVER_SEEN


def test_tier_below_the_cache_knows_what_was_saved_there(root, tmp_path, monkeypatch):
    lower = tmp_path / "image"
    lower.mkdir()
    key_records.remember(record(), str(lower))
    monkeypatch.setenv("SAFECACHE_LOWER", str(lower))
    config.reload()
    try:
        assert key_records.find_absence_reason(Ref(Kind.AOT_ENTRY, OTHER, root), "model.f") is Reason.KEY_DIFFERS
        assert [found.key for found in key_records.list_same_name(Ref(Kind.AOT_ENTRY, root=root), "model.f")] == [KEY]
    finally:
        monkeypatch.undo()
        config.reload()


def test_latest_of_a_name_stay(root):
    keys = [f"a{'b' * number:c<51}" for number in range(40)]
    for age, key in enumerate(reversed(keys)):
        key_records.remember(record(key), root)
        [path] = Path(root).rglob(f"{key}.json.gz")
        os.utime(path, (1e9 - age, 1e9 - age))
    left = {found.key for found in key_records.list_same_name(Ref(Kind.AOT_ENTRY, root=root), "model.f")}
    assert len(left) == 32 and keys[0] in left


def test_nonce_in_place_of_a_key_is_not_remembered(root):
    key_records.remember(record("0.8444218515250481"), root)
    key_records.remember(record("7f8a4d29b54c4f7ca9ab8c06f1a9a2bd"), root)
    key_records.remember(record("../../../../../../../../../../../../../../../escaped"), root)
    assert key_records.list_records(root) == [] and not Path(root, ".safecache").exists()


def test_lines_are_left_out_of_a_record_that_is_too_large(root):
    lines = tuple(Component("graph line", f"{n:016d}", "x" * 160) for n in range(3000))
    key_records.remember(record(components=(*PARTS, *lines)), root)
    found = key_records.recall(Ref(Kind.AOT_ENTRY, KEY, root), "model.f")
    assert found.components[0] == PARTS[0] and {part.text for part in found.components[1:]} == {""}
    assert [part.digest for part in found.components[2:]] == [part.digest for part in lines]


def stated(**fields):
    key_fields = {"layer": "aot", "key": KEY, "name": "model.f", "made": 1, "first": 1, "process": "", "components": []}
    return gzip.compress(json.dumps(key_fields | {"format": 1} | fields).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        gzip.compress(b"[]"),
        gzip.compress(b"[" * 100_000),
        gzip.compress(b'{"format": 1'),
        stated(format=2),
        stated(layer="moon"),
        stated(components=[["one"]]),
        stated(components=7),
        stated(made="soon"),
        stated(key=OTHER),
        stated(name="model.g"),
        stated(components=[["a", "b", "x" * 50_000_000]]),
    ],
    ids=[
        *("empty", "garbage", "list", "deep", "torn", "version", "layer", "component", "number", "time"),
        *("other-key", "other-name", "bomb"),
    ],
)
def test_what_is_no_record_of_this_key_is_passed_over(root, content):
    key_records.remember(record(), root)
    path_of(root).write_bytes(content)
    assert key_records.list_same_name(Ref(Kind.AOT_ENTRY, root=root), "model.f") == []


def test_what_is_no_file_is_neither_waited_for_nor_followed(root, tmp_path):
    key_records.remember(record(), root)
    path = path_of(root)
    os.mkfifo(path.with_name(f"{OTHER}.json.gz"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert key_records.list_records(root) == key_records.list_same_name(Ref(Kind.AOT_ENTRY, root=root), "model.f") == []
