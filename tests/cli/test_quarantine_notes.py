"""Notes in quarantine are whoever's who can write there: they send nothing out of its cache, and to no other key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.caches import key
from helpers.listed import aside, entry, place

from safecache.store import quarantine


@pytest.mark.parametrize(
    "origin",
    [
        "/etc/cron.d/evil",
        "/etc/aotautograd/../../x",
        "/x/../evil.so",
        "/../../../../etc/evil.so",
        "/x/%2e%2e/evil.so",
        "",
        "\0",
        7,
        ["/x"],
    ],
    ids=ascii,
)
def test_note_cannot_send_a_file_out_of_the_cache(cache, ask, origin, tmp_path):
    moved = aside(entry(cache, "a"), cache.root)
    Path(f"{moved}.json").write_text(json.dumps({"from": origin, "reason": "x"}))
    before = sorted(tmp_path.rglob("*"))
    assert "refused again" in ask("restore", moved.name, code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_entry_goes_back_to_no_other_key_than_it_was_sealed_for(cache, ask):
    path = entry(cache, "a")
    moved = aside(path, cache.root)
    elsewhere = path.parents[1] / key("a", "b") / path.name
    Path(f"{moved}.json").write_text(json.dumps({"from": str(elsewhere)}))
    assert "sealed for another cache key" in ask("restore", moved.name, code=1) and not elsewhere.exists()


@pytest.mark.parametrize("depth", [0, 1])
def test_link_on_the_way_back_is_not_followed(cache, ask, tmp_path, depth):
    path = entry(cache, "a")
    moved = aside(path, cache.root)
    path.parent.rmdir()
    outside = tmp_path / "outside"
    (outside / path.parent.name).mkdir(parents=True)
    if depth:
        path.parent.symlink_to(outside)
    else:
        path.parents[1].rmdir()
        path.parents[1].symlink_to(outside)
    ask("restore", moved.name, code=1)
    assert moved.exists() and [each for each in outside.rglob("*") if not each.is_dir()] == []


@pytest.mark.parametrize("action", [("restore",), ("rm",)])
def test_link_in_the_place_of_quarantine_is_not_followed(cache, run, monkeypatch, tmp_path, action):
    moved = aside(entry(cache, "a"), cache.root)
    outside = tmp_path / "outside"
    listed = quarantine.open_quarantine

    def exchange(root):
        if not outside.exists():
            place(cache).rename(outside)
            place(cache).symlink_to(outside)
        return listed(root)

    monkeypatch.setattr(quarantine, "open_quarantine", exchange)
    said = run("quarantine", *action, moved.name, "--in", cache.root)
    assert said.code == 1 and (outside / moved.name).exists()


NOTES = {"none": None, "huge": b'"' + b"x" * (1 << 20) + b'"', "deep": b"[" * 100_000, "list": b"[]", "binary": b"\xff"}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_item_without_a_note_that_says_anything_is_told(cache, ask, note):
    moved = aside(entry(cache, "a"), cache.root)
    Path(f"{moved}.json").unlink()
    if note is not None:
        Path(f"{moved}.json").write_bytes(note)
    [item] = ask()["items"]
    assert (item["item"], item["from"], item["reason"]) == (moved.name, "", "")
    assert "refused again" in ask("restore", moved.name, code=1)


def test_notes_cannot_speak_to_the_terminal(cache, run):
    moved = aside(entry(cache, "a"), cache.root)
    Path(f"{moved}.json").write_text(json.dumps({"from": "/x/\x1b[2J.so", "reason": "[red]\x07"}))
    for arguments in ((), ("show", moved.name), ("restore", moved.name)):
        said = run("quarantine", *arguments, "--in", cache.root)
        assert not {"\x1b", "\x07"} & set(said.out + said.err)
