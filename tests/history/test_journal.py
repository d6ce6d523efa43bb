"""The journal of lookups: one file a process, written at a miss, after hits and at the end, of no consequence to any."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import SOURCE, python

from safecache import history, ports, session
from safecache.built_code import lock_guards
from safecache.entries import searches
from safecache.history import run_summary
from safecache.places.refs import Ref
from safecache.ports import Lookup, Outcome
from safecache.reporting.kinds import Kind, Reason
from safecache.testing import failing

HIT = Lookup(Ref(Kind.AOT_ENTRY, "akey"), "", Outcome.HIT, None, "", 0.0, "")
MISS = Lookup(Ref(Kind.FX_ENTRY, "fkey"), "model (m.py:1)", Outcome.MISS, Reason.NEVER_SEEN, "", 0.002, "0/0")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(history._journal, "now", history._Journal())
    session.reset()
    history._journal.now.awaits_end = True  # no test is to be written of when pytest ends


def files(root):
    return sorted((root / ".safecache/journal").glob("*"))


def lines(root):
    return [json.loads(text) for path in files(root) for text in path.read_text().splitlines()]


def record(lookup, root):
    ports.tell(lookup._replace(ref=lookup.ref._replace(root=str(root))))


def test_time_of_a_hit_is_counted_once_for_what_it_needs_too(tmp_path, monkeypatch):
    """A graph within an AOTAutograd entry is looked up within the lookup of that."""
    clock = iter([1.0, 2.0, 2.5, 3.0])
    monkeypatch.setattr(searches.time, "perf_counter", lambda: next(clock))
    root = str(tmp_path)
    with searches.track_lookup(Ref(Kind.AOT_ENTRY, "akey", root), str) as outer:
        with searches.track_lookup(Ref(Kind.FX_ENTRY, "fkey", root), str) as inner:
            inner.end_as_hit()
        outer.end_as_hit()
    assert history._journal.now.counted == {"fx hit": 1, "aot hit": 1, "aot ms in hits": 2000}


@pytest.mark.parametrize("fails", [False, True], ids=["taken", "not taken"])
def test_wait_for_a_lock_is_counted_from_a_millisecond_on(monkeypatch, fails):
    clock = iter([1.0, 1.0004, 5.0, 8.5])
    monkeypatch.setattr(lock_guards.time, "perf_counter", lambda: next(clock))

    def attempt(seconds):
        if fails:
            raise TimeoutError

    for _ in range(2):
        with suppress(TimeoutError):
            lock_guards.wait("lock", 1, attempt)
    assert history._journal.now.counted == {"code ms waited": 3500}


def test_journal_that_cannot_be_written_is_told_of_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "safecache"), failing("write", "ENOSPC", below=tmp_path):
        for _ in range(3):
            record(MISS, tmp_path)
    (said,) = [line for line in caplog.messages if "journal" in line]
    assert "No space left on device" in said


def test_miss_is_written_at_once_with_the_hits_before_it(tmp_path, monkeypatch):
    monkeypatch.setenv("_SAFECACHE_RUN", "a-run")
    monkeypatch.setenv("RANK", "3")
    record(HIT, tmp_path)
    assert not files(tmp_path)
    record(MISS, tmp_path)
    [line] = lines(tmp_path)
    assert line.pop("time") > 0 and line.pop("host") == os.uname().nodename
    assert line == {
        "run": "a-run",
        "pid": os.getpid(),
        "rank": "3",
        "layer": "fx",
        "key": "fkey",
        "name": "model (m.py:1)",
        "outcome": "miss",
        "reason": "never seen",
        "detail": "",
        "seconds": 0.002,
        "frame": "0/0",
        "counts": {"aot hit": 1},
    }


def test_each_hit_is_written_once(tmp_path):
    for lookup in (HIT, MISS, HIT, HIT, MISS):
        record(lookup, tmp_path)
    history._end_journal()
    assert [line["counts"] for line in lines(tmp_path)] == [{"aot hit": 1}, {"aot hit": 2}]
    record(HIT, tmp_path)
    history._end_journal()
    history._end_journal()
    assert [line["counts"] for line in lines(tmp_path)][2:] == [{"aot hit": 1}]
    assert history.get_counts() == {"aot hit": 4, "fx miss: never seen": 2}


END = """
import os, sys
from safecache import history, ports
from safecache.ports import Lookup, Outcome
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.reporting.kinds import Reason
history.observe()
def record(outcome, reason=None):
    ports.tell(Lookup(Ref(Kind.AOT_ENTRY, "akey", sys.argv[1]), "", outcome, reason, "", 0.0, ""))
record(Outcome.HIT)
"""


def test_process_that_only_hits_writes_when_it_ends(tmp_path):
    done = python(END, arguments=(str(tmp_path),), env={"SAFECACHE": "0"})
    assert done.returncode == 0 and [line["counts"] for line in lines(tmp_path)] == [{"aot hit": 1}], done.stderr


def test_process_that_only_hits_and_is_killed_at_once_leaves_nothing(tmp_path):
    python(f"{END}os.kill(os.getpid(), 9)", arguments=(str(tmp_path),), env={"SAFECACHE": "0"})
    assert os.listdir(tmp_path) == []


LATER = f"""{END}
input()
record(Outcome.HIT)
if not os.fork():
    record(Outcome.HIT)
input()
"""


def eventually(counts, root):
    """Wait until that is what has been written; the test's own timeout ends it."""
    while sorted(line["counts"]["aot hit"] for line in lines(root)) != counts:
        time.sleep(0.05)


@pytest.mark.timeout(60)
def test_process_that_only_hits_and_is_killed_has_written_that_soon_after(tmp_path):
    """As a server is: it is killed long after its last hit. It forks another, that has a journal of its own."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"}
    how = {"env": environment, "stdin": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", LATER, str(tmp_path)], **how) as process:
        try:
            eventually([1], tmp_path)
            process.stdin.write("\n")
            process.stdin.flush()
            eventually([1, 1, 1], tmp_path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and len(files(tmp_path)) == 2
    summary = run_summary.summarise(run_summary.read_unverified(str(tmp_path)), run_summary.LAST)
    assert (len(summary.by_process), summary.counts) == (2, {"aot hit": 3})


def test_hits_leave_room_for_what_misses_later(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "LARGEST", 2000)
    monkeypatch.setattr(history, "_PAUSE", 0.0)
    for _ in range(20):
        record(HIT, tmp_path)
        history._write_counted()
    assert 0 < files(tmp_path)[0].stat().st_size <= 1000
    record(MISS, tmp_path)
    assert lines(tmp_path)[-1]["outcome"] == "miss"
    assert sum(line["counts"]["aot hit"] for line in lines(tmp_path)) == 20


FORK = f"""{END}
record(Outcome.MISS, Reason.EVICTED)
record(Outcome.HIT)
pid = os.fork()
if not pid:
    assert history.get_counts() == {{}}
    record(Outcome.MISS, Reason.EVICTED)
    sys.exit()
os.waitpid(pid, 0)
"""


def test_forked_child_has_its_own_file_and_none_of_its_parents_counts(tmp_path):
    done = python(FORK, arguments=(str(tmp_path),), env={"SAFECACHE": "0"})
    assert done.returncode == 0, done.stderr
    counts = {path: [json.loads(text)["counts"] for text in path.read_text().splitlines()] for path in files(tmp_path)}
    assert sorted(counts.values(), key=str) == [[{"aot hit": 1}, {"aot hit": 1}], [{}]]
    assert len({line["pid"] for line in lines(tmp_path)}) == 2


WORKER = f"""{END}
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=record, args=(Outcome.HIT,))
process.start()
process.join()
"""


def test_child_of_multiprocessing_writes_when_it_ends(tmp_path):
    done = python(WORKER, arguments=(str(tmp_path),), env={"SAFECACHE": "0"})
    assert done.returncode == 0 and len(files(tmp_path)) == 2, done.stderr
    assert [line["counts"] for line in lines(tmp_path)] == [{"aot hit": 1}] * 2


@pytest.mark.parametrize("fault", ["a file in the way", "read-only", "no such root"])
def test_journal_that_cannot_be_written_is_of_no_consequence(tmp_path, fault, caplog, monkeypatch):
    root = tmp_path / "cache"
    if fault == "a file in the way":
        root.write_text("")
    elif fault == "read-only":
        root = Path("/proc/self")
    else:
        root = Path("/proc/nobody")
    record(MISS, root)
    record(HIT, root)
    history._end_journal()
    assert history.get_counts() == {"aot hit": 1, "fx miss: never seen": 1} and not caplog.records


def test_directory_that_torch_would_make_is_made(tmp_path, monkeypatch):
    """A process that only uses Triton has it named, and nobody makes it."""
    named = tmp_path / "not" / "there"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(named))
    record(MISS, tmp_path / "triton")
    assert len(lines(named)) == 1 and not (tmp_path / "triton").exists()
    shutil.rmtree(tmp_path / "not")
    record(MISS, tmp_path / "triton")
    assert not named.exists(), "it is not made where somebody has removed it since"


def test_journal_that_was_removed_is_begun_again(tmp_path):
    record(MISS, tmp_path)
    [path] = files(tmp_path)
    path.unlink()
    path.parent.rmdir()
    record(MISS, tmp_path)
    assert files(tmp_path) == [path] and len(lines(tmp_path)) == 1


def test_what_a_file_has_no_room_for_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "LARGEST", 1000)
    for _ in range(10):
        record(MISS, tmp_path)
    history._end_journal()
    written = lines(tmp_path)
    named = sum("layer" in line for line in written)
    assert 0 < named < 10 and written[-1]["counts"] == {"fx miss: never seen": 10 - named}
    assert files(tmp_path)[0].stat().st_size < 2000


def test_oldest_files_go_where_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MOST_FILES", 3)
    folder = tmp_path / ".safecache/journal"
    folder.mkdir(parents=True)
    for year in (2024, 2022, 2021, 2023):
        (folder / f"{year}0101T000000-1-aa.jsonl").write_text("")
    record(MISS, tmp_path)
    assert [path.name[:4] for path in files(tmp_path)][:2] == ["2023", "2024"] and len(files(tmp_path)) == 3


def test_what_is_no_journal_is_never_removed(tmp_path, monkeypatch):
    """As where somebody has put a link to another directory of ours in its place."""
    monkeypatch.setattr(history, "MOST_FILES", 1)
    folder = tmp_path / ".safecache/journal"
    folder.mkdir(parents=True)
    names = {"20210101-training-data.jsonl", "00000.jsonl", "20210101T000000-1-aa.json"}
    for name in names:
        (folder / name).write_text("")
    record(MISS, tmp_path)
    assert names < {path.name for path in files(tmp_path)}


def test_text_of_upstream_is_cut(tmp_path):
    record(MISS._replace(detail="x" * 10_000), tmp_path)
    assert len(lines(tmp_path)[0]["detail"]) == history.LONGEST_TEXT


def test_file_of_another_name_is_not_followed(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.write_text("")
    record(MISS, tmp_path)
    [path] = files(tmp_path)
    path.unlink()
    path.symlink_to(target)
    record(MISS, tmp_path)
    assert target.read_text() == ""


def test_threads_lose_no_line(tmp_path):
    threads = [threading.Thread(target=lambda: [record(MISS, tmp_path) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(tmp_path)) == 80 and len(files(tmp_path)) == 1


CHILD = """
import os, subprocess, sys
import safecache
print(os.environ["_SAFECACHE_RUN"], flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "-c", os.environ["CODE"], "child"])
"""


def test_run_is_named_once_for_all_that_it_starts():
    runs = [python(CHILD, env={"SAFECACHE": "1", "CODE": CHILD, "_SAFECACHE_RUN": ""}).stdout.split() for _ in range(2)]
    assert all(first == second for first, second in runs) and len({run for pair in runs for run in pair}) == 2
