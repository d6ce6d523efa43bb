"""`quarantine`: what was moved aside is told, goes back only where a load would take it, and is removed on demand."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest
from helpers.caches import HOUR, key
from helpers.fresh import forget_kernels
from helpers.key_cases import MAC, put
from helpers.listed import aside, entry, kernel, place

from safecache.fs import filesystem
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.settings import config
from safecache.signing import keyring, seal
from safecache.store import gate, quarantine


def test_list_tells_what_was_moved_when_from_where_and_why(cache, ask, run):
    path = entry(cache, "a")
    content = path.read_bytes()
    moved = aside(path, cache.root)
    cache.file(place(cache) / "somebody's", HOUR)
    [item] = ask()["items"]
    assert item == ask("list")["items"][0]
    moment = item.pop("time")
    assert moment.startswith(time.strftime("%Y-", time.gmtime()))
    assert item == {
        "item": moved.name,
        "path": str(moved),
        "from": str(path),
        "reason": "other build",
        "files": 1,
        "bytes": len(content),
    }
    said = run("quarantine", "--in", cache.root)
    assert moved.name in said.out and "other build" in said.out and said.lines[-1].startswith("1 in quarantine")


def test_entry_that_verifies_goes_back_and_its_note_with_it(cache, ask, run):
    path = entry(cache, "a")
    content = path.read_bytes()
    moved = aside(path, cache.root)
    path.parent.rmdir()
    assert ask("show", moved.name)["refused"] is None
    assert ask("restore", moved.name[:12]) == {"item": moved.name, "restored": str(path)}
    assert path.read_bytes() == content and os.listdir(place(cache)) == []
    assert run("verify", cache.root).code == 0


@pytest.mark.parametrize("kind", [Kind.AOT_ENTRY, Kind.FX_ENTRY])
def test_cache_that_was_copied_gets_back_what_it_holds_and_not_what_the_first_had(cache, ask, tmp_path, kind):
    path = entry(cache, "a", kind)
    aside(path, cache.root)
    first = tmp_path / "first"
    cache.root.rename(first)
    # The note names the directory of before.
    cache.root.mkdir()
    (first / ".safecache").rename(cache.root / ".safecache")
    [item] = ask()["items"]
    assert ask("restore", item["item"])["restored"] == str(path) and path.exists()
    assert not (first / path.relative_to(cache.root)).exists()


def test_what_would_be_refused_again_stays_and_says_why(cache, ask, run):
    path = entry(cache, "a")
    path.write_bytes(b"x" + path.read_bytes()[1:])
    moved = aside(path, cache.root, Reason.DAMAGED)
    assert "does not match the digest" in ask("show", moved.name)["refused"]
    said = ask("restore", moved.name, code=1)
    assert "would be refused again: its content does not match" in said
    assert moved.exists() and Path(f"{moved}.json").exists() and not path.exists()
    assert "would be refused again" in run("quarantine", "show", moved.name, "--in", cache.root).out


def test_nothing_is_put_over_what_lies_there_again(cache, ask):
    path = entry(cache, "a")
    content = path.read_bytes()
    moved = aside(path, cache.root)
    path.write_bytes(b"another")
    assert "something lies again" in ask("restore", moved.name, code=1)
    assert path.read_bytes() == b"another" and moved.read_bytes() == content


def _with_record(cache, path, content):
    """A file of code that has a record, as its build leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = Kind.KERNEL if layout.TRITON_KEY.fullmatch(path.parent.name) else Kind.NATIVE_CODE
    root = path.parent if path.suffix == ".gch" else path.parents[1]
    assert gate.attest_file(CodeFile(str(path), str(root), kind), content)
    path.write_bytes(content)
    return root


@pytest.mark.parametrize("what", ["library", "kernel", "header"])
def test_code_goes_back_if_its_record_is_of_it(cache, ask, what):
    own = key("c", "x")
    path = {
        "library": cache.root / own[1:3] / f"{own}.so",
        "kernel": kernel(cache, "k", {}) / "other.cubin",
        "header": cache.root / "precompiled_headers" / "safecache-0123456789abcdef" / f"{own}.h.gch",
    }[what]
    root = _with_record(cache, path, b"\x7fELF")
    moved = aside(path, root, Reason.UNSEALED)
    forget_kernels()
    assert ask("restore", moved.name)["restored"] == str(path) and path.read_bytes() == b"\x7fELF"
    path.write_bytes(b"\x7fELF other")
    moved = aside(path, root, Reason.DAMAGED)
    assert "its digest is not the one" in ask("restore", moved.name, code=1) and not path.exists()


def test_code_of_a_key_that_is_trusted_by_now_goes_back(cache, ask, settings, tmp_path):
    path = cache.root / key("c", "x")[1:3] / f"{key('c', 'x')}.so"
    put(MAC)
    settings(SAFECACHE_KEY_FILE=tmp_path / "config" / "safecache" / "keys" / f"{MAC.id.hex()}.json")
    _with_record(cache, path, b"\x7fELF")
    settings(SAFECACHE_KEY_FILE="", SAFECACHE_KEYRING=_empty(tmp_path))
    moved = aside(path, cache.root, Reason.UNKNOWN_KEY)
    assert "no record of it that a trusted key" in ask("restore", moved.name, code=1)
    settings(SAFECACHE_KEYRING="")
    assert ask("restore", moved.name)["restored"] == str(path)


def _empty(tmp_path):
    (tmp_path / "keys").mkdir(mode=0o700)
    return tmp_path / "keys"


def test_source_or_stranger_has_no_place_to_go_back_to(cache, ask):
    for path in (cache.root / "ab" / "main.py", cache.root / "somewhere" / "notes.txt", cache.root / "ABC" / "x.so"):
        moved = aside(cache.file(path, HOUR), cache.root)
        assert "nothing is kept that has a seal" in ask("restore", moved.name, code=1) and moved.exists()


def test_file_system_without_hard_links_is_served_by_renaming(cache, ask, monkeypatch):
    path = entry(cache, "a")
    moved = aside(path, cache.root)

    def none(*rest, **named):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(filesystem, "link", none)
    assert ask("restore", moved.name)["restored"] == str(path) and path.exists() and not moved.exists()
    moved = aside(path, cache.root)
    path.write_bytes(b"another")
    ask("restore", moved.name, code=1)
    assert path.read_bytes() == b"another" and moved.exists()


@pytest.mark.timeout(20, method="signal")  # would hang for ever
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_what_is_no_file_is_told_and_not_restored(cache, ask, make):
    path = entry(cache, "a")
    path.unlink()
    make(path)
    moved = aside(path, cache.root, Reason.NOT_A_FILE)
    assert ask("show", moved.name)["reason"] == "not a file"
    assert "it is a" in ask("restore", moved.name, code=1) and os.path.lexists(moved)
    assert ask("rm", moved.name)["removed"] == [moved.name] and not os.path.lexists(moved)


def test_items_are_removed_by_name_each_with_its_note(cache, ask):
    one, two, three = (aside(entry(cache, name), cache.root) for name in "abc")
    said = ask("rm", one.name, two.name)
    assert said["removed"] == [one.name, two.name] and said["left"] == []
    assert sorted(os.listdir(place(cache))) == [three.name, f"{three.name}.json"]


def test_all_items_are_removed_and_nothing_else(cache, ask):
    for name in "abc":
        aside(entry(cache, name), cache.root)
    mine = cache.file(place(cache) / "notes.txt", HOUR)
    assert len(ask("rm", "--all")["removed"]) == 3
    assert list(place(cache).iterdir()) == [mine] and ask("rm", "--all")["removed"] == []


@pytest.mark.parametrize("action", ["show", "restore", "rm"])
def test_name_of_several_or_none_does_nothing(cache, run, action):
    items = [aside(cache.file(cache.root / "x", HOUR), cache.root) for _ in range(2)]
    for name, told in (("x", "2 are called so"), ("y", "nothing is called so")):
        said = run("quarantine", action, name, "--in", cache.root)
        assert said.code == 1 and told in said.err
    assert all(item.exists() for item in items)


@pytest.mark.parametrize("arguments", [("rm",), ("rm", "x", "--all"), ("restore",), ("restore", "a", "b"), ("burn",)])
def test_what_says_no_item_is_a_usage_error(run, arguments):
    assert run("quarantine", *arguments).code == 2


def test_item_that_cannot_be_removed_is_told(cache, run, monkeypatch):
    moved = aside(entry(cache, "a"), cache.root)
    monkeypatch.setattr(quarantine, "remove", lambda directory, name: None)
    said = run("quarantine", "rm", moved.name, "--in", cache.root)
    assert said.code == 1 and "cannot be removed" in said.err and said.out.startswith("0 removed")


def test_empty_quarantine_is_no_error(cache, run):
    said = run("quarantine", "--in", cache.root)
    assert said.code == 0 and said.lines == ["0 in quarantine, 0 B"]


def test_restored_entry_is_that_of_before_to_the_byte_and_counts_for_nothing_else(cache, ask):
    path = entry(cache, "a")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    moved = aside(path, cache.root)
    events._state.reset()
    ask("restore", moved.name)
    verdict = seal.verify(
        path.read_bytes(), Kind.AOT_ENTRY, path.parent.name, keyring.current().find, config.current().namespace
    )
    assert verdict.reason is None and hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert events.read_counters() == {}
