"""Notes of crashes: whom they keep from compiling, for how long, and whom they do not."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import pytest

from safecache import session
from safecache.errors import EntryRefusedError
from safecache.isolation import crashes
from safecache.isolation.client import Limits
from safecache.isolation.crashes import Crash, Note
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.signing import keyring, seal

HASH, OTHER = "ab" * 32, "cd" * 32
HOUR, DAY = 3600.0, 86400.0


@pytest.fixture
def root(tmp_path, monkeypatch):
    session.reset()
    root = tmp_path / "triton"
    root.mkdir()
    return str(root)


def note(how="signal", number=6, age=0.0):
    return Note(Crash(how, number, "ptx"), "kernel", {"N": 128}, None, time.time() - age)


def remember(root, monkeypatch, found, hash=HASH):
    """And forget it again, in this process."""
    crashes.remember(root, hash, found)
    crashes._known.reset()


def find(root, hash=HASH, timeout=120.0, memory=10**9):
    return crashes.find(root, hash, Limits(timeout, memory))


def path_of(root, hash=HASH):
    return f"{root}/.safecache/known_bad/{hash}"


def test_what_has_crashed_is_known_to_another_process(root, monkeypatch):
    crashed = note()
    remember(root, monkeypatch, crashed)
    assert find(root) == crashed
    assert find(root, OTHER) is None


@pytest.mark.parametrize("number", [9, 15])
def test_kill_by_somebody_else_is_not_remembered(root, monkeypatch, number):
    crashes.remember(root, HASH, note(number=number))
    assert find(root) is None


@pytest.mark.parametrize(("age", "holds"), [(29 * DAY, True), (31 * DAY, False)])
def test_crash_is_remembered_for_thirty_days(root, monkeypatch, age, holds):
    remember(root, monkeypatch, note(age=age))
    assert (find(root) is not None) is holds


@pytest.mark.parametrize(("how", "number"), [("timeout", 120), ("memory", 10**9)])
@pytest.mark.parametrize(("age", "holds"), [(23 * HOUR, True), (25 * HOUR, False)])
def test_limit_is_remembered_for_a_day(root, monkeypatch, how, number, age, holds):
    remember(root, monkeypatch, note(how, number, age))
    assert (find(root) is not None) is holds


@pytest.mark.parametrize(
    ("how", "number", "limits", "holds"),
    [
        ("timeout", 120, {"timeout": 120.0}, True),
        ("timeout", 120, {"timeout": 60.0}, True),
        ("timeout", 120, {"timeout": 121.0}, False),
        ("memory", 10**9, {"memory": 10**9}, True),
        ("memory", 10**9, {"memory": 2 * 10**9}, False),
        ("signal", 6, {"timeout": 10**4, "memory": 10**11}, True),
        ("exit", 0, {"timeout": 10**4, "memory": 10**11}, True),
    ],
)
def test_note_holds_while_the_limit_is_no_larger(root, monkeypatch, how, number, limits, holds):
    remember(root, monkeypatch, note(how, number))
    assert (find(root, **limits) is not None) is holds


def test_note_that_cannot_be_written_holds_in_this_process(root):
    open(f"{root}/.safecache", "w").close()
    crashes.remember(root, HASH, note())
    assert find(root) is not None
    assert events.read_counters()["unwritable"] == 1


def planted(root, content):
    """A note of somebody who can write there."""
    crashes.remember(root, OTHER, note())
    with open(path_of(root), "wb") as file:
        file.write(content)


def sealed(stated, hash=HASH, kind=Kind.KNOWN_BAD):
    return seal.attach(json.dumps(stated).encode(), kind, hash, keyring.current().signing, {}, "default")


STATED = note()._asdict() | {"crash": note().crash._asdict()}


@pytest.mark.parametrize(
    ("forge", "reason", "evidence"),
    [
        (lambda: json.dumps(STATED).encode(), "unsealed", "no seal: it was written without safecache"),
        (lambda: sealed(STATED, OTHER), "other cache key", "it was sealed for another cache key"),
        (lambda: sealed(STATED, kind=Kind.KERNEL), "other kind", "it was sealed as another kind"),
        (lambda: sealed(STATED).replace(b"signal", b"memory"), "damaged", "its content does not match"),
        (lambda: sealed(["no note"]), "unknown format", "this version does not know its format"),
        (lambda: sealed({"crash": {}}), "unknown format", "this version does not know its format"),
    ],
    ids=["unsealed", "of-another-hash", "of-another-kind", "altered", "no-object", "no-note"],
)
def test_note_that_nothing_attests_keeps_nobody_from_compiling(root, caplog, forge, reason, evidence):
    planted(root, forge())
    assert find(root) is None
    assert events.read_counters()[reason] == 1
    (said,) = caplog.messages
    assert f"{path_of(root)} [" in said and evidence in said


def test_such_a_note_is_an_error_in_strict_mode(root, settings):
    settings(SAFECACHE_STRICT=1)
    planted(root, json.dumps(STATED).encode())
    with pytest.raises(EntryRefusedError):
        find(root)


def test_forgotten_crash_is_compiled_again(root, monkeypatch):
    remember(root, monkeypatch, note())
    assert crashes.forget(root, HASH) is True
    assert find(root) is None
    assert crashes.forget(root, HASH) is False


def test_list_has_what_holds(root, monkeypatch):
    remember(root, monkeypatch, note())
    remember(root, monkeypatch, note("timeout", 5, 2 * DAY), OTHER)
    assert [hash for hash, _ in crashes.iter_notes(root)] == [HASH]
    assert crashes.list_hashes(root) == sorted([HASH, OTHER])


def test_what_only_this_process_knows_is_forgotten_too(root):
    open(f"{root}/.safecache", "w").close()
    crashes.remember(root, HASH, note())
    os.unlink(f"{root}/.safecache")
    assert crashes.forget(root, HASH) is True
    assert find(root) is None


def test_note_of_a_key_that_is_not_trusted_keeps_nobody_from_compiling(root, monkeypatch, tmp_path):
    remember(root, monkeypatch, note())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of another user"))
    config.reload()
    keyring.renew()
    assert find(root) is None
    assert events.read_counters()["unknown key"] == 1


def test_commands_tell_of_notes_without_a_report_and_forget_all(root, monkeypatch, run):
    remember(root, monkeypatch, note())
    remember(root, monkeypatch, note(), OTHER)
    [first, second] = json.loads(run("ls", "--crashed", "--json", root).out)["crashed"]
    assert {first["hash"], second["hash"]} == {HASH, OTHER} and first["report"] is None and first["skipped"]
    assert run("forget", HASH[:8], "--in", root).lines == ["1 forgotten"]
    assert crashes.list_hashes(root) == [OTHER]
    assert run("forget", "--all", "--in", root).lines == ["1 forgotten"]
    assert crashes.list_hashes(root) == []
    said = run("forget", HASH, "--in", root)
    assert said.code == 1 and "no kernel of the hash" in said.err
    assert run("forget", "--in", root).code == run("forget", HASH, "--all", "--in", root).code == 2


def test_without_a_key_to_seal_with_only_this_process_knows(root, monkeypatch):
    monkeypatch.setattr(keyring, "current", lambda: SimpleNamespace(signing=None))
    crashes.remember(root, HASH, note())
    assert not os.path.exists(path_of(root)) and find(root) is not None


def test_list_passes_over_what_is_no_note(root, monkeypatch):
    planted(root, b"of somebody else")
    open(path_of(root, "README"), "w").close()
    crashes._known.reset()
    assert crashes.list_hashes(root) == sorted([HASH, OTHER])
    assert [hash for hash, _ in crashes.iter_notes(root)] == [OTHER]
