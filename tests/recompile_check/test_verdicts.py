"""What follows from an entry that recompiles differently, on disks that are full, and at the end of the program."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE
from helpers.caches import key
from helpers.listed import entry

from safecache import recompile_check, session
from safecache.fs import folders
from safecache.history import run_summary
from safecache.places.refs import Ref
from safecache.ports import Found
from safecache.recompile_check import Difference
from safecache.reporting import events
from safecache.reporting.kinds import Count, Kind
from safecache.settings import config
from safecache.testing import failing

DIFFERENCES = [Difference("source_code", "-a\n+b")]


@pytest.fixture(autouse=True)
def nothing_differs():
    session.reset()
    yield
    session.reset()


@pytest.fixture
def hit(cache, monkeypatch):
    """A sealed entry that was hit."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache.root))
    path = entry(cache, "a")
    return Found(Ref(Kind.AOT_ENTRY, key("a", "a"), str(cache.root)), path.read_bytes(), str(path))


def kept(cache):
    place = cache.root / ".safecache" / "differences"
    return sorted(place.iterdir()) if place.exists() else []


def aside(cache):
    return [each for each in (cache.root / ".safecache" / "quarantine").glob("*") if not each.name.endswith(".json")]


def test_both_are_kept_and_the_entry_is_set_aside_but_not_twice(cache, hit, caplog):
    caplog.set_level(logging.DEBUG, "safecache")
    place = Path(recompile_check.report_difference(hit, b"made", DIFFERENCES))
    assert kept(cache) == [place]
    assert (place / "in_the_cache.entry").read_bytes() == hit.content
    assert (place / "compiled_now.entry").read_bytes() == b"made"
    assert (place / "difference.txt").read_text() == "source_code:\n-a\n+b"
    report = json.loads((place / "report.json").read_text())
    assert (report["kind"], report["cache_key"], report["path"]) == ("aot_autograd", hit.ref.key, hit.origin)
    [moved] = aside(cache)
    assert moved.read_bytes() == hit.content and not os.path.exists(hit.origin)
    assert f"AOTAutograd entry {hit.origin} recompiles differently" in caplog.text
    assert str(place) in caplog.text and f"moved to {moved}" in caplog.text and "+b" in caplog.text

    entry(cache, "a")
    assert recompile_check.report_difference(hit, b"made", DIFFERENCES) == ""
    assert os.path.exists(hit.origin) and aside(cache) == [moved]
    assert "It has differed before, and is left" in caplog.messages[-1]
    assert events.read_counters() == {"recompile differs": 2, "quarantined": 1}
    assert [each.levelname for each in caplog.records] == ["WARNING", "DEBUG"], "said once"


@pytest.mark.parametrize("call", ["mkdir", "write", "rename"])
@pytest.mark.parametrize("is_all", [False, True])
def test_full_disk_costs_the_evidence_and_no_more(cache, hit, caplog, call, is_all):
    with failing(call, "ENOSPC", below=cache.root / ".safecache" / ("" if is_all else "differences")):
        assert recompile_check.report_difference(hit, b"made", DIFFERENCES) == ""
    assert "Nothing could be kept as evidence: No space left on device." in caplog.text
    assert kept(cache) == [], "nothing half"
    [after] = [*aside(cache), *([Path(hit.origin)] if os.path.exists(hit.origin) else [])]
    assert after.read_bytes() == hit.content
    assert is_all or str(after) in caplog.text
    # With room again, it is kept.
    assert recompile_check.report_difference(hit, b"made", DIFFERENCES) == str(kept(cache)[0])


def test_entry_that_lies_nowhere_is_told_by_its_key(hit, caplog):
    recompile_check.report_difference(Found(hit.ref._replace(root=""), hit.content, ""), b"made", DIFFERENCES)
    assert f"AOTAutograd entry {hit.ref.key} recompiles differently" in caplog.text


def test_what_is_kept_is_told_though_no_room_can_be_made(hit, monkeypatch):
    def names(folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(folders.Folder, "list_names", names)
    place = recompile_check.report_difference(hit, b"made", DIFFERENCES)
    assert len(os.listdir(place)) == 5


@pytest.mark.parametrize("planted", ["nothing", "a file", "other key's", "unsealed"])
def test_what_others_have_left_keeps_no_entry(cache, hit, planted):
    """As an empty file, or what this user has kept of another key."""
    place = cache.root / ".safecache" / "differences" / recompile_check._name_pair((hit.ref.kind, hit.ref.key))
    if planted == "a file":
        place.parent.mkdir(parents=True)
        place.write_bytes(b"")
    elif planted == "other key's":
        recompile_check.keep_pair(str(cache.root), (Kind.FX_ENTRY, "other"), b"a", b"b", "", {})
        (place.parent / recompile_check._name_pair((Kind.FX_ENTRY, "other"))).rename(place)
    else:
        place.mkdir(parents=True)
        if planted == "unsealed":
            (place / "record").write_bytes(b"{}")
    assert not recompile_check.is_kept(str(cache.root), (hit.ref.kind, hit.ref.key))
    assert recompile_check.report_difference(hit, b"made", DIFFERENCES) == str(place)
    assert len(aside(cache)) == 1 and not os.path.exists(hit.origin)


def test_the_latest_stay(cache):
    root = str(cache.root)
    for number in range(23):
        place = recompile_check.keep_pair(root, (Kind.FX_ENTRY, key("f", str(number))), b"a", b"b", "", {})
        os.utime(place, (number, number))
    assert [recompile_check.is_kept(root, (Kind.FX_ENTRY, key("f", str(number)))) for number in range(23)] == (
        [False] * 3 + [True] * 20
    )


def test_what_another_process_has_saved_since_stays(cache, hit, caplog):
    Path(hit.origin).write_bytes(b"newer")
    assert recompile_check.report_difference(hit, b"made", DIFFERENCES)
    assert Path(hit.origin).read_bytes() == b"newer" and aside(cache) == []
    assert "It could not be moved away, or was replaced since." in caplog.text
    assert "quarantined" not in events.read_counters()


@pytest.mark.parametrize("has_own", [True, False])
def test_a_lower_tier_stays_as_it_is(cache, hit, caplog, tmp_path, monkeypatch, has_own):
    (tmp_path / "own").mkdir()
    own = str(tmp_path / "own") if has_own else None
    monkeypatch.setattr(config, "cache_directory", lambda: own)
    monkeypatch.chdir(tmp_path)
    place = recompile_check.report_difference(hit._replace(ref=hit.ref._replace(root="")), b"made", DIFFERENCES)
    assert place.startswith(f"{tmp_path}/own/.safecache/") if has_own else place == ""
    assert not (tmp_path / ".safecache").exists() and not (cache.root / ".safecache").exists()
    assert Path(hit.origin).read_bytes() == hit.content
    assert "It stays, because it is in a lower tier." in caplog.text


@pytest.mark.parametrize("is_strict", [False, True])
def test_strict_mode_raises_nothing_and_lists_what_has_differed_at_the_end(hit, settings, caplog, is_strict):
    settings(SAFECACHE_STRICT=int(is_strict))
    recompile_check.report_difference(hit, b"made", DIFFERENCES)
    recompile_check.report_uncompared("it", "somewhere")
    recompile_check._say_at_the_end()
    recompile_check._say_at_the_end()
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(said) == is_strict
    assert all(f"1 entry recompiles differently: AOTAutograd entry {hit.ref.key}" in _ for _ in said)


FORKS = """
import {imported}os, sys
from safecache import recompile_check
from safecache.reporting.kinds import Kind
from safecache.places.refs import Ref
from safecache.ports import Found

def differ(name):
    recompile_check.report_difference(Found(Ref(Kind.FX_ENTRY, name, "/no"), b"a", "/no/where"), b"b", [])

if {how!r} == "parent":
    differ("the parent's")
    if not os.fork():
        sys.exit()
    os.wait()
else:
    child = multiprocessing.get_context("fork").Process(target=differ, args=("the child's",))
    child.start()
    child.join()
"""


@pytest.mark.parametrize("how", ["parent", "child"])
def test_each_process_lists_its_own_at_its_end(tmp_path, how):
    code = FORKS.format(how=how, imported="" if how == "parent" else "multiprocessing, ")
    environment = {"PYTHONPATH": str(SOURCE), "SAFECACHE_STRICT": "1", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"1 entry recompiles differently: FX graph entry the {how}'s") == 1


def test_run_tells_what_was_verified(cache, hit, monkeypatch):
    from safecache import history

    monkeypatch.setattr(history._journal, "now", history._Journal())
    history._journal.now.awaits_end, history._journal.now.root = True, str(cache.root)
    events.count(Count.RECOMPILED, 2)
    recompile_check.report_difference(hit, b"made", DIFFERENCES)
    recompile_check.report_uncompared("it", "somewhere")
    history._end_journal()
    summary = run_summary.summarise(run_summary.read_unverified(str(cache.root)), run_summary.LAST)
    expected = {"recompile matches": 2, "recompile differs": 1, "not recompiled": 1}
    assert summary.counts.items() >= expected.items()
