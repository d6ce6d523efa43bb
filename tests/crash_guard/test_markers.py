"""Markers and strikes: what a death leaves, what follows from it, and what anybody can make of them."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import needs_root

from safecache import crash_guard
from safecache.crash_guard import markers, strikes
from safecache.crash_guard.markers import Blame
from safecache.errors import CacheReadError, EntryRefusedError
from safecache.fs import filesystem
from safecache.places import metadata, refs
from safecache.places.refs import Ref
from safecache.ports import Admitted, Use, tell
from safecache.reporting import events, waits
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.settings import config, units
from safecache.signing import side_records
from safecache.store import quarantine
from safecache.upkeep import audit

FX = "fxgraph/ab/fabkey/entry"
AOT = "aotautograd/akey/entry"
LIBRARY = "xy/cxyz.main.so"
NAMES = [FX, AOT, LIBRARY]
CRASH = f'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "{crash_guard.__file__}", line 1 in run\n'
ELSEWHERE = 'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "/x/other.py", line 1 in f\n'
NO_STACK = "Fatal Python error: Segmentation fault\n\n"


@pytest.fixture
def cache(tmp_path):
    """A cache with an entry of each kind and a library."""
    root = tmp_path / "cache"
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"content")
    return root


def markers_in(cache):
    return cache / metadata.FOLDER / metadata.TRIALS


def framed(name, content):
    """As a part of the marker of this name, sealed."""
    return markers._frame_record(side_records.seal_record(markers._make_subject(name), content))


def dies(cache, *, said="", names=NAMES, trial=True, number=1, around=None):
    """Have so many processes die together, with this in their markers."""
    pids = []
    read, write = os.pipe()
    for _ in range(number):
        pid = os.fork()
        if not pid:
            marker = markers.get_own_marker(str(cache), time.time())
            if around is not None:
                header = {"pid": os.getpid(), "began": time.time(), "around": around}
                os.pwrite(marker.descriptor, framed(marker.name, header), 0)
            if trial:
                marker.arm(list(names))
            os.write(marker.descriptor, said.encode())
            os.write(write, b"x")
            signal.pause()
        pids.append(pid)
    left = number
    while left:
        left -= len(os.read(read, left))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(read)
    os.close(write)
    return pids


def looks(cache):
    """What the next process finds: the files that are left."""
    crash_guard._state.reset()
    crash_guard.open_cache(str(cache))
    return [name for name in NAMES if (cache / name).exists()]


def runs(cache):
    return [name for name in os.listdir(markers_in(cache)) if name.startswith("run-")]


@pytest.mark.parametrize(
    ("said", "deaths"),
    [(CRASH, 1), (NO_STACK, 2), ("", 2)],
    ids=["crash", "crash of a thread that Python does not know", "nothing"],
)
def test_so_many_deaths_set_aside_what_was_run(cache, said, deaths):
    for _ in range(deaths - 1):
        dies(cache, said=said)
        assert looks(cache) == NAMES
    dies(cache, said=said)
    assert looks(cache) == [] and runs(cache) == []
    assert events.read_counters()[Count.QUARANTINED.value] == len(NAMES)
    assert events.read_counters()[Reason.CRASHED_RUN.value] == 1


def test_crash_in_a_thread_that_ran_something_else_counts_for_nothing(cache):
    for _ in range(3):
        dies(cache, said=ELSEWHERE)
        assert looks(cache) == NAMES


def test_death_where_the_machine_ran_out_of_memory_counts_for_nothing(cache):
    here = markers.read_oom_state()
    assert here["killed"] >= 0
    for _ in range(3):
        dies(cache, around=here | {"killed": here["killed"] + 1})
        assert looks(cache) == NAMES
    dies(cache, around=here | {"killed": here["killed"] + 1}, said=CRASH)
    assert looks(cache) == []


def test_death_with_nothing_on_trial_counts_for_nothing(cache):
    dies(cache, trial=False, said=CRASH)
    assert looks(cache) == NAMES and runs(cache) == []


def test_trial_that_has_ended_is_none(cache, monkeypatch):
    own = markers.get_own_marker

    def twice(place, began):
        marker = own(place, began)
        marker.disarm(marker.arm([LIBRARY]))
        return marker

    monkeypatch.setattr(markers, "get_own_marker", twice)
    dies(cache, names=[FX], said=CRASH)
    assert looks(cache) == [AOT, LIBRARY]
    dies(cache, trial=False, said=CRASH)
    assert looks(cache) == [AOT, LIBRARY]


def test_process_that_lives_is_let_be(cache):
    """And not waited for."""
    marker = markers.get_own_marker(str(cache), time.time())
    marker.arm(NAMES)
    pid = os.fork()
    if not pid:
        left = looks(cache)
        os._exit(99 if waits._state.now.in_vain else len(left))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(NAMES)
    assert runs(cache) == [marker.name]


def test_process_is_dead_although_its_child_lives(cache):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        markers.get_own_marker(str(cache), time.time()).arm(NAMES)
        if not os.fork():
            os.write(write, b"%d" % os.getpid())
            signal.pause()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    child = int(os.read(read, 20))
    os.waitpid(pid, 0)
    try:
        looks(cache)
        assert runs(cache) == [] and crash_guard.open_cache(str(cache)).strikes.keys
    finally:
        os.kill(child, signal.SIGKILL)


def test_processes_that_die_together_are_one_strike(cache):
    dies(cache, number=8, said=NO_STACK)
    assert looks(cache) == NAMES and runs(cache) == []
    dies(cache, number=8, said=NO_STACK)
    assert looks(cache) == []
    assert {number for number, _ in crash_guard.open_cache(str(cache)).strikes.keys.values()} == {strikes.ASIDE}


def test_many_that_look_at_once_all_see_what_was_set_aside(cache):
    dies(cache, number=4, said=CRASH)
    pids = []
    for _ in range(8):
        pid = os.fork()
        if not pid:
            os._exit(len(looks(cache)))
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 8
    assert runs(cache) == []


def _killing(monkeypatch, at):
    """Have this process killed in its call of this number."""
    calls = iter(range(1, at + 1))

    def replaced(original):
        def call(*arguments, **named):
            if next(calls, at) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **named)

        return call

    for name in ("open", "flock", "rename", "unlink", "write", "mkdir", "fstat", "lstat", "pread", "close"):
        monkeypatch.setattr(filesystem, name, replaced(getattr(filesystem, name)))


def test_look_that_is_killed_anywhere_is_finished_by_the_next(cache, monkeypatch):
    at, killed = -1, True
    while killed:
        at += 2
        # Each look has the same calls, whatever earlier ones have set aside.
        shutil.rmtree(cache / metadata.FOLDER, ignore_errors=True)
        for name in NAMES:
            (cache / name).write_bytes(b"content")
        dies(cache, said=CRASH)
        pid = os.fork()
        if not pid:
            _killing(monkeypatch, at)
            looks(cache)
            os._exit(0)
        killed = os.waitpid(pid, 0)[1] != 0
        looks(cache)
        found = crash_guard.open_cache(str(cache)).strikes
        assert runs(cache) == [] and found.count_strikes(Ref(Kind.FX_ENTRY, "fabkey")) >= strikes.ASIDE
        assert not (cache / FX).exists() or found.has_file(Ref(Kind.FX_ENTRY, "fabkey"), "entry")
        strikes.forget(str(cache))
    assert at > 30


HOSTILE = [
    "../outside",
    "/etc/passwd",
    "fxgraph/ab/../../../outside",
    ".safecache/records/ab/abcd",
    "../fxgraph/ab/fabkey/entry",
    "xy",
    "xy/../../outside.so",
    "",
    "\0",
    "a" * 5000,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_but_files_of_caches_is_moved(cache, name):
    (cache.parent / "outside").write_bytes(b"mine")
    (cache.parent / "outside.so").write_bytes(b"mine")
    record = cache / ".safecache/records/ab/abcd"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"record")
    dies(cache, names=[FX, name], said=CRASH)
    assert looks(cache) == [AOT, LIBRARY]
    assert (cache.parent / "outside").exists() and (cache.parent / "outside.so").exists() and record.exists()
    assert len([each for each in os.listdir(cache / ".safecache/quarantine") if not each.endswith(".json")]) == 1


def _link(path):
    path.symlink_to("/etc/passwd")


GARBAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_bytes(b"garbage"),
    "no header": lambda path: path.write_bytes(b"[]\n"),
    "deep": lambda path: path.write_bytes(b'{"pid": 1, "began": 0, "around": {}}\n'.ljust(4096) + b"[" * 60000),
    "no list": lambda path: path.write_bytes(
        b'{"pid": 1, "began": 0, "around": {}}\n'.ljust(4096, b"\0") + b'{"a": 1}\n'
    ),
    "no names": lambda path: path.write_bytes(
        b'{"pid": 1, "began": 0, "around": {}}\n'.ljust(4096, b"\0") + b"[[1]]\n"
    ),
    "infinite": lambda path: path.write_bytes(b'{"pid": 1, "began": 1e999, "around": {}}\n'),
    "large": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 40),
    "FIFO": lambda path: os.mkfifo(path),
    "directory": lambda path: path.mkdir(),
    "link": _link,
}


@pytest.mark.parametrize("make", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_marker_does_no_harm(cache, make):
    markers_in(cache).mkdir(parents=True)
    make(markers_in(cache) / "run-1-0123456789ab")
    dies(cache, said=CRASH)
    assert looks(cache) == []


@needs_root
def test_marker_of_another_user_counts_only_in_a_shared_cache(cache, settings):
    dies(cache, said=CRASH)
    [name] = runs(cache)
    os.chown(markers_in(cache) / name, 12345, 12345)
    assert looks(cache) == NAMES
    settings(SAFECACHE_SHARED="1")
    assert looks(cache) == []


# What others can leave in a cache: nothing of it speaks against an entry, and nobody waits for it.


def plant(cache, content, name="run-1-0123456789ab"):
    markers_in(cache).mkdir(parents=True, exist_ok=True)
    (markers_in(cache) / name).write_bytes(content)


def marker_of(names, header=framed, slot=framed, name="run-1-0123456789ab"):
    """A whole marker of a process that has crashed."""
    about = {"pid": 1, "began": time.time(), "around": {}}
    parts = header(name, about).ljust(markers._HEADER, b"\0") + slot(name, {"names": names})
    return parts.ljust(markers._EVIDENCE, b"\0") + CRASH.encode()


def plain(_, content):
    text = json.dumps(content).encode()
    return b"%15d\n" % len(text) + text


def of_another(_, content):
    return framed("run-2-0123456789ab", content)


@pytest.mark.parametrize("slot", [plain, of_another])
@pytest.mark.parametrize("header", [plain, of_another, framed])
def test_marker_that_this_user_has_not_sealed_counts_for_nothing(cache, header, slot):
    for _ in range(3):
        plant(cache, marker_of(NAMES, header, slot))
        assert looks(cache) == NAMES and runs(cache) == []
    plant(cache, marker_of(NAMES))
    assert looks(cache) == []


def test_marker_that_comes_back_is_no_second_strike(cache):
    """Whoever has kept a link to it can put it there again."""
    dies(cache, names=[FX])
    (name,) = runs(cache)
    content = (markers_in(cache) / name).read_bytes()
    for _ in range(6):
        assert looks(cache) == NAMES
        plant(cache, content, name)


@pytest.mark.parametrize("mtime", [None, 4102444800])
def test_strikes_in_a_cache_count_for_nothing(cache, mtime):
    """As earlier releases have left them, or anybody."""
    key, file = refs.digest("fx", "fabkey"), refs.digest("fx", "fabkey", "entry")
    for name in (f"key-{key}.4", f"file-{file}.2", "strikes"):
        plant(cache, b"", name)
        if mtime is not None:
            os.utime(markers_in(cache) / name, (mtime, mtime))
    assert looks(cache) == NAMES
    assert not crash_guard.find_refusal(Ref(Kind.FX_ENTRY, "fabkey", str(cache)), "entry")


def test_record_of_another_cache_counts_for_nothing(cache, tmp_path, settings):
    dies(cache, said=CRASH)
    looks(cache)
    home = config.current().config_home
    here, there = (Path(metadata.find_user_path(home, str(root))) for root in (cache, tmp_path / "other"))
    there.mkdir(parents=True)
    (here / "strikes").rename(there / "strikes")
    assert strikes.read(str(tmp_path / "other")) == strikes.NONE == strikes.read(str(cache))
    (there / "strikes").rename(here / "strikes")
    assert strikes.read(str(cache)).keys


def test_process_without_a_key_leaves_no_marker(cache, monkeypatch):
    monkeypatch.setattr(side_records, "seal_record", lambda *_: None)
    assert markers.get_own_marker(str(cache), time.time()) is None and not markers_in(cache).exists()


@needs_root
def test_locked_markers_of_another_user_delay_nobody(cache):
    files = []
    for number in range(64):
        name = f"run-{number}-0123456789ab"
        plant(cache, b"x", name)
        os.chown(markers_in(cache) / name, 65534, 65534)
        files.append(os.open(markers_in(cache) / name, os.O_RDWR))
        fcntl.flock(files[-1], fcntl.LOCK_EX)
    began = time.monotonic()
    assert looks(cache) == NAMES
    assert time.monotonic() - began < waits.UNPROVEN
    for file in files:
        os.close(file)


def test_locked_markers_of_this_user_delay_by_two_seconds_in_all(cache):
    files = []
    for number in range(8):
        plant(cache, b"x", f"run-{number}-0123456789ab")
        files.append(os.open(markers_in(cache) / f"run-{number}-0123456789ab", os.O_RDWR))
        fcntl.flock(files[-1], fcntl.LOCK_EX)
    began = time.monotonic()
    assert looks(cache) == NAMES
    assert time.monotonic() - began < waits.UNPROVEN * 3
    for file in files:
        os.close(file)


def test_marker_with_many_names_makes_one_file(cache):
    names = [f"fxgraph/ab/f{'a' * 50}{number % 10}/entry{number}" for number in range(500)]
    for number in range(8):
        plant(cache, marker_of(names, name=f"run-{number}-0123456789ab"), f"run-{number}-0123456789ab")
    assert looks(cache) == NAMES
    place = Path(metadata.find_user_path(config.current().config_home, str(cache)))
    assert {path.name for path in place.iterdir()} == {"strikes", "strikes.lock"}
    assert (place / "strikes").stat().st_size <= side_records.LARGEST


def test_surrogate_in_a_marker_is_said_and_gone(cache, caplog):
    plant(cache, marker_of(["fxgraph/ab/f\ud800/entry", FX]))
    assert looks(cache) == NAMES and runs(cache) == []
    assert "the look at what processes have died of failed" in caplog.text and "UnicodeEncodeError" in caplog.text
    caplog.clear()
    assert looks(cache) == NAMES and not caplog.messages


def test_strict_mode_raises_once_what_crashed(cache, settings):
    settings(SAFECACHE_STRICT=1)
    dies(cache, said=CRASH)
    crash_guard._state.reset()
    with pytest.raises(EntryRefusedError, match="did not survive its first run"):
        crash_guard.open_cache(str(cache))
    crash_guard.open_cache(str(cache))
    assert looks(cache) == [] and runs(cache) == []


ERRORS = [RuntimeError("it broke"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), OverflowError("2^80")]
ERRORS += [MemoryError(), RecursionError("too deep")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("module", "name", "has_died"),
    [(markers, "_parse_death", True), (strikes, "add", True), (strikes, "read", False)],
    ids=["marker", "strike", "record"],
)
def test_whatever_fails_in_the_look_is_said_once(cache, monkeypatch, caplog, settings, module, name, has_died, error):
    def fail(*_, **__):
        raise error

    for strict in ("0", "1"):
        settings(SAFECACHE_STRICT=strict)
        if has_died:
            dies(cache, said=CRASH)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            crash_guard._state.reset()
            if strict == "0":
                crash_guard.open_cache(str(cache))
            else:
                with pytest.raises(CacheReadError) as caught:
                    crash_guard.open_cache(str(cache))
                assert caught.value.__cause__ is error
            assert not markers_in(cache).exists() or runs(cache) == []
    (line,) = caplog.messages
    assert type(error).__name__ in line and "Entries are loaded as if none had died" in line


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (markers, "get_own_marker"),
        (markers.Marker, "rearm"),
        (markers.Marker, "disarm"),
        (markers, "begin"),
        (markers, "end"),
    ],
    ids=["marker", "arm", "disarm", "begin", "end"],
)
def test_whatever_fails_in_the_watch_over_a_run_is_no_error_of_it(cache, monkeypatch, caplog, module, name, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, name, fail)
    for _ in range(2):
        graph = type("Graph", (SimpleNamespace,), {})()
        assert crash_guard.load(Use(Kind.FX_ENTRY, str(cache), [FX], graph), lambda: "loaded") == "loaded"
        with pytest.raises(KeyError, match="mine"), crash_guard.Trial(str(cache), [FX]).guard_block():
            raise KeyError("mine")
    (line,) = caplog.messages
    assert "the watch over a first run failed" in line and type(error).__name__ in line
    monkeypatch.undo()
    markers._state.reset()


def test_what_is_admitted_while_a_graph_is_loaded_is_part_of_its_trial(cache):
    trial = crash_guard.Trial(str(cache), [FX])
    with trial.guard_block():
        tell(Admitted(str(cache / LIBRARY)))
    tell(Admitted(str(cache / AOT)))
    assert trial.names == [FX, LIBRARY]


def test_doubt_alone_sets_aside_once_and_bars_nothing(cache):
    for number in range(6):
        for name in NAMES:
            (cache / name).write_bytes(b"content")
        dies(cache)
        assert (looks(cache) == []) is (number == 1)
    assert max(crash_guard.open_cache(str(cache)).strikes.keys.values())[0] < strikes.BARRED


def test_strikes_end_after_a_month(cache, monkeypatch):
    dies(cache, said=CRASH)
    looks(cache)
    assert crash_guard.find_refusal(Ref(Kind.FX_ENTRY, "fabkey", str(cache)), "entry")
    month = 30 * 86400 + 60
    monkeypatch.setattr(strikes.time, "time", lambda time=time.time: time() + month)
    looks(cache)
    assert not crash_guard.find_refusal(Ref(Kind.FX_ENTRY, "fabkey", str(cache)), "entry")


def test_child_of_multiprocessing_leaves_none(cache):
    child = multiprocessing.get_context("fork").Process(target=markers.get_own_marker, args=(str(cache), 0.0))
    child.start()
    child.join()
    assert child.exitcode == 0 and os.listdir(markers_in(cache)) == []


def test_forget_takes_back_all_strikes_and_leaves_markers(cache, run):
    for _ in range(2):
        for name in NAMES:
            (cache / name).write_bytes(b"content")
        dies(cache, said=CRASH)
        looks(cache)
    assert "crashed again" in crash_guard.find_refusal(Ref(Kind.FX_ENTRY, "fabkey", str(cache)), "entry").evidence
    dies(cache)
    # One for each key: those of the entries.
    assert run("forget", "--all", "--in", cache).lines == ["2 forgotten"]
    assert os.listdir(markers_in(cache)) == runs(cache) != []
    crash_guard._state.reset()
    assert not crash_guard.find_refusal(Ref(Kind.FX_ENTRY, "fabkey", str(cache)), "other")


def test_what_was_set_aside_and_why_is_listed_by_name(cache, run):
    artifact = refs.name_artifact("code", "a compile")
    dies(cache, names=[FX])
    looks(cache)
    dies(cache, names=[LIBRARY], said=CRASH)
    dies(cache, names=[artifact], said=CRASH)
    for _ in range(2):
        (cache / AOT).write_bytes(b"content")
        dies(cache, names=[AOT], said=CRASH)
        looks(cache)
    found = json.loads(run("ls", "--crashed", "--json", cache).out)["first_runs"]
    assert {(each["what"], each["state"]) for each in found} == {
        ("FX graph entry fabkey", "quarantined at the next crash"),
        ("AOTAutograd entry akey", "compiled at every start for 30 days"),
        (LIBRARY, "quarantined"),
        (audit._ELSEWHERE, "quarantined"),
    }
    assert all(units.parse_time(each["moment"]) <= time.time() and each["root"] == str(cache) for each in found)
    lines = run("ls", "--crashed", cache).lines
    assert len(lines) == 4 and any(line.endswith(f"first run of {LIBRARY} (quarantined)") for line in lines)
    run("forget", "--all", "--in", cache)
    assert run("ls", "--crashed", cache).lines == []


def test_note_in_quarantine_says_why(cache):
    dies(cache, said=CRASH)
    looks(cache)
    folder = cache / metadata.FOLDER / metadata.QUARANTINE
    moved = next(name for name in os.listdir(folder) if name.startswith("entry.") and not name.endswith(".json"))
    assert quarantine.read_note(str(folder / f"{moved}.json"))["reason"] == Reason.CRASHED_RUN.value


def test_end_of_a_process_leaves_no_marker(cache):
    assert markers.get_own_marker(str(cache), time.time()) is not None and runs(cache)
    markers._own.reset()
    assert runs(cache) == []


def test_more_at_once_than_there_is_room_for_is_not_noted(cache):
    marker = markers.get_own_marker(str(cache), time.time())
    slots = [marker.arm(NAMES) for _ in range(20)]
    assert slots.count(None) == 20 - markers._SLOTS
    marker.disarm(slots[0])
    assert marker.arm(NAMES) == slots[0]


def test_entries_are_noted_where_there_is_no_room_for_all_names(cache):
    dies(cache, names=[FX, AOT, *(f"xy/{number:0200}.so" for number in range(1000))], said=CRASH)
    assert looks(cache) == [LIBRARY]


def test_callable_is_what_it_was_after_the_first_run(cache):
    called = []
    graph = type("Graph", (SimpleNamespace,), {})(current_callable=None)

    def original(inputs):
        called.append(graph.current_callable)
        return inputs

    def load():
        graph.current_callable = original
        return graph

    assert (
        crash_guard.load(Use(Kind.FX_ENTRY, str(cache), [FX], graph), load) is graph
        and graph.current_callable is original
    )
    crash_guard.watch_graph(lambda: None, graph, (), {})
    assert graph.current_callable is not original
    stale = graph.current_callable
    assert graph.current_callable([1]) == [1] and called == [original]
    assert graph.current_callable is original and stale([2]) == [2]
    crash_guard.watch_graph(lambda: None, graph, (), {})
    assert graph.current_callable is original


def test_what_wraps_the_callable_meanwhile_stays(cache):
    """As CUDA graphs do, or a user."""
    graph = type("Graph", (SimpleNamespace,), {})(current_callable=lambda inputs: inputs)
    crash_guard.load(Use(Kind.FX_ENTRY, str(cache), [FX], graph), lambda: graph)
    crash_guard.watch_graph(lambda: None, graph, (), {})
    inner = graph.current_callable
    graph.current_callable = wrapper = lambda inputs: inner(inputs)
    assert [graph.current_callable([number]) for number in range(3)] == [[0], [1], [2]]
    assert graph.current_callable is wrapper


def test_graph_that_never_runs_is_forgotten(cache):
    graphs = [type("Graph", (SimpleNamespace,), {})(current_callable=len)]
    crash_guard.load(Use(Kind.FX_ENTRY, str(cache), [FX], graphs[0]), lambda: None)
    assert crash_guard._state.now.loaded
    graphs.clear()
    assert not crash_guard._state.now.loaded


def test_faulthandler_that_is_enabled_meanwhile_stays(cache, tmp_path):
    import faulthandler

    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    try:
        markers.begin(1)
        assert faulthandler.is_enabled()
        markers.begin(1)
        markers.end()
        assert faulthandler.is_enabled()
        markers.end()
        assert not faulthandler.is_enabled()
        markers.begin(1)
        with open(tmp_path / "theirs", "w") as theirs:
            faulthandler.enable(theirs)
            markers.end()
            assert faulthandler.is_enabled()
            faulthandler.disable()
            faulthandler.enable(theirs)
            markers.begin(1)
            markers.end()
            assert faulthandler.is_enabled()
    finally:
        faulthandler.disable()
        if was_enabled:
            faulthandler.enable()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_handler_of_the_program_stays(when):
    """As that of a Java machine, which such signals are no crashes for."""
    import faulthandler

    was_enabled, handled = faulthandler.is_enabled(), []
    faulthandler.disable()
    try:
        if when == "meanwhile":
            markers.begin(1)
        signal.signal(signal.SIGSEGV, lambda *_: handled.append(1))
        if when == "before":
            markers.begin(1)
            assert not faulthandler.is_enabled()
        markers.end()
        os.kill(os.getpid(), signal.SIGSEGV)
        assert handled == [1]
    finally:
        faulthandler.disable()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        if was_enabled:
            faulthandler.enable()


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (MemoryError(), Blame.NONE),
        (type("OutOfMemoryError", (RuntimeError,), {})(), Blame.NONE),
        (OSError(28, "full"), Blame.NONE),
        (RuntimeError("index out of range"), Blame.UNSURE),
        (TypeError("of the caller"), Blame.UNSURE),
    ],
)
def test_exceptions_from_elsewhere(cache, error, blame):
    assert markers.judge_exception(error, str(cache)) is blame


@pytest.mark.parametrize(
    ("code", "blame"), [("f()", Blame.SURE), ("1 / 0", Blame.UNSURE), ("raise OSError", Blame.UNSURE)]
)
def test_exceptions_of_generated_code_itself(cache, code, blame):
    with pytest.raises(Exception) as raised:
        exec(compile(code, str(cache / "xy" / "cxyz.py"), "exec"), {})
    assert markers.judge_exception(raised.value, str(cache)) is blame
