"""Leases: one holds, the others wait; and what becomes of them when a holder dies, freezes or lies."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import select
import signal
import stat
import threading
import time

import pytest
from conftest import needs_root

from safecache import compiles, history, single_flight
from safecache.entries import searches
from safecache.fs import holders
from safecache.history import run_summary
from safecache.places import metadata
from safecache.places.refs import Ref
from safecache.reporting import events, waits
from safecache.reporting.kinds import Count, Kind
from safecache.signing import heartbeats

KEY = "a key"


def folder(root):
    return root / metadata.FOLDER / metadata.LEASES


def enter(root, kind=Kind.FX_ENTRY, key=KEY):
    return single_flight.wait_or_lead(Ref(kind, key, str(root)))


@pytest.fixture
def compiling():
    """This thread compiles a graph, for the test."""
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        yield


@pytest.fixture
def impatient(monkeypatch):
    """A holder that does not run is given up after a second."""
    monkeypatch.setattr(holders, "STALLED", 1.0)
    monkeypatch.setattr(holders, "_INTERVAL", 0.1)


def timers():
    return sum(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def is_held() -> bool:
    return bool(compiles.current.flights[-1].leases)


def test_a_holder_knows_who_waits_for_a_graph_that_trains(root, flyer):
    with single_flight.compile_scope(Kind.AOT_ENTRY, math.inf, trains=True):
        enter(root, Kind.AOT_ENTRY)
        others = flyer(root, "AOT_ENTRY", KEY)
        others.await_lease()
        assert is_held() and not single_flight.has_waiter()
        waiting = [flyer(root, "AOT_ENTRY", KEY, "trains") for _ in range(2)]
        while not single_flight.has_waiter():
            time.sleep(0.01)
        for each in waiting:
            each.await_lease()
            each.end()
        assert not single_flight.has_waiter()
    assert others.says() == "looks again"


def test_where_no_holder_can_be_told_nobody_waits_for_it(root, flyer, monkeypatch):
    holder = flyer(root, "AOT_ENTRY", KEY)
    assert holder.says() == "holds"
    monkeypatch.setattr(single_flight.Lease, "mark_waiter", lambda lease: False)
    with single_flight.compile_scope(Kind.AOT_ENTRY, math.inf, trains=True):
        assert enter(root, Kind.AOT_ENTRY) is None and single_flight.is_compiled_elsewhere()


def test_a_rank_does_not_wait_for_a_graph_that_trains(root, flyer):
    holder = flyer(root, "AOT_ENTRY", KEY)
    assert holder.says() == "holds"
    with single_flight.compile_scope(Kind.AOT_ENTRY, 60.0, trains=True):
        assert enter(root, Kind.AOT_ENTRY) is None and single_flight.is_compiled_elsewhere()


def test_first_holds_and_nothing_is_left_of_it(root):
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        assert enter(root) is not None and is_held()
        assert len(os.listdir(folder(root))) == 1
    assert os.listdir(folder(root)) == []


def test_failed_compile_releases_it(root, flyer):
    with pytest.raises(ValueError), single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        enter(root)
        other = flyer(root, "FX_ENTRY", KEY)
        raise ValueError
    assert other.says() in ("looks again", "holds")


def test_second_waits_until_the_first_has_ended_and_looks_again(root, flyer, compiling, monkeypatch):
    monkeypatch.setattr(history._journal, "now", history._Journal())
    other = flyer(root, "FX_ENTRY", KEY)
    assert other.says() == "holds"
    threading.Timer(1.0, other.go_on).start()
    flight = enter(root)
    assert flight.waited > 0 and not is_held()
    flight.mark_found()
    assert events.read_counters()[Count.LEFT_TO_OTHERS.value] == 1
    assert other.says() == "released"
    (line,) = (each for each in run_summary.read_unverified(str(root)) if each.label == Count.LEFT_TO_OTHERS.value)
    assert line.key == KEY and flight.waited == pytest.approx(line.waited, abs=0.01)
    # Of this process and of the other one, each rounded for itself.
    assert 1.0 > line.took - line.waited >= -0.01


@pytest.fixture
def left_one(root, flyer, compiling, monkeypatch):
    """This process has found a graph that another one compiled, and has started no compile workers."""
    monkeypatch.setattr(searches._postponed, "now", [lambda: None])
    other = flyer(root, "FX_ENTRY", KEY)
    assert other.says() == "holds"
    threading.Timer(0.5, other.go_on).start()
    enter(root).mark_found()


def test_next_graph_is_left_to_who_has_workers_too(root, flyer, left_one, monkeypatch):
    monkeypatch.setattr(single_flight, "_HEAD_START", 60.0)
    other = flyer(root, "FX_ENTRY", "the next")

    def compile() -> None:
        other.says()
        time.sleep(0.5)
        other.go_on()

    threading.Thread(target=compile).start()
    assert enter(root, key="the next").waited > 0 and not is_held()


def test_next_graph_is_compiled_if_nobody_comes(root, left_one, monkeypatch):
    slept = []
    monkeypatch.setattr(single_flight, "_HEAD_START", 0.2)
    monkeypatch.setattr(single_flight.time, "sleep", lambda seconds, sleep=time.sleep: slept.append(sleep(seconds)))
    assert enter(root, key="the next") is not None and is_held() and slept
    slept.clear()
    monkeypatch.setattr(single_flight._state.now, "has_been_left_one", True)
    assert enter(root, key="one more") is not None and not slept, "once"


def test_what_was_found_is_released_at_once(root, flyer, compiling):
    flight = enter(root)
    other = flyer(root, "FX_ENTRY", KEY)
    flight.mark_found()
    assert other.says() in ("looks again", "holds")
    assert Count.LEFT_TO_OTHERS.value not in events.read_counters()


def test_holder_that_is_killed_has_one_successor(root, flyer):
    holder = flyer(root, "FX_ENTRY", KEY)
    assert holder.says() == "holds"
    waiting = [flyer(root, "FX_ENTRY", KEY) for _ in range(3)]
    for each in waiting:
        each.await_lease()
    os.kill(holder.pid, signal.SIGKILL)
    ready, _, _ = select.select([each.process.stdout for each in waiting], [], [], 60)
    (successor,) = (each for each in waiting if each.process.stdout in ready)
    assert successor.says() == "holds"
    successor.go_on()
    assert sorted(each.says() for each in waiting) == ["looks again", "looks again", "released"]


def test_killed_holder_with_a_child_that_lives_on_is_succeeded(root, flyer, compiling):
    holder = flyer(root, "FX_ENTRY", KEY, "fork")
    assert holder.says() == "holds"
    os.kill(holder.pid, signal.SIGKILL)
    assert enter(root) is not None and is_held()


def test_frozen_holder_is_given_up_and_not_waited_for_again(root, flyer, compiling, impatient, caplog):
    holder = flyer(root, "FX_ENTRY", KEY)
    assert holder.says() == "holds"
    os.kill(holder.pid, signal.SIGSTOP)
    with caplog.at_level(logging.WARNING):
        assert enter(root) is None
    assert f"gave up waiting for process {holder.pid} (python" in caplog.text, caplog.text
    assert events.read_counters()[Count.WAITED_IN_VAIN.value] == 1
    caplog.clear()
    assert enter(root) is None and not caplog.text


def test_time_is_up_though_the_holder_runs(root, flyer, compiling, settings):
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=1)
    assert flyer(root, "FX_ENTRY", KEY).says() == "holds"
    assert enter(root) is None


@pytest.mark.parametrize("before", [0.01, 0.001])
def test_time_is_up_by_what_it_took_before(root, flyer, compiling, monkeypatch, before):
    monkeypatch.setattr(single_flight, "_AT_LEAST", 0.1)
    assert flyer(root, "FX_ENTRY", KEY).says() == "holds"
    assert single_flight.wait_or_lead(Ref(Kind.FX_ENTRY, KEY, str(root)), lambda: before) is None
    assert events.read_counters()[Count.WAITED_IN_VAIN.value] == 1


@pytest.mark.parametrize("before", [0.0, -1.0, math.nan, 1e300, math.inf])
def test_no_more_than_the_setting_whatever_it_took(root, flyer, compiling, settings, before):
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=1)
    assert flyer(root, "FX_ENTRY", KEY).says() == "holds"
    assert single_flight.wait_or_lead(Ref(Kind.FX_ENTRY, KEY, str(root)), lambda: before) is None


def test_who_need_not_wait_asks_for_no_time(root, compiling):
    assert (
        single_flight.wait_or_lead(Ref(Kind.FX_ENTRY, KEY, str(root)), lambda: pytest.fail("it is asked for"))
        is not None
    )


def test_rank_of_a_group_waits_no_longer_than_it_may(root, flyer):
    assert flyer(root, "FX_ENTRY", KEY).says() == "holds"
    with single_flight.compile_scope(Kind.FX_ENTRY, 0.2):
        assert enter(root) is None
    with single_flight.compile_scope(Kind.FX_ENTRY, None):
        assert enter(root, key="another") is None and not is_held()


@pytest.fixture
def a_moment(monkeypatch):
    """After a quarter of a second, a measurement has taken long."""
    monkeypatch.setattr(single_flight, "_MEASURED", 0.25)


def test_rank_that_measures_for_long_has_one_successor(root, flyer, a_moment):
    with single_flight.compile_scope(Kind.FX_ENTRY, 60.0):
        assert enter(root) is not None and is_held()
        waiting = [flyer(root, "FX_ENTRY", KEY) for _ in range(2)]
        for each in waiting:
            each.await_lease()
        with single_flight.release_while_measuring():
            ready, _, _ = select.select([each.process.stdout for each in waiting], [], [], 60)
            assert len(ready) == 1
            while is_held():  # its lock is let go first, by another thread
                time.sleep(0.01)
        (successor,) = (each for each in waiting if each.process.stdout in ready)
        assert successor.says() == "holds"
    assert len(os.listdir(folder(root))) == 1, "the lease is the successor's now"
    successor.go_on()
    assert sorted(each.says() for each in waiting) == ["looks again", "released"]


def test_what_was_found_while_it_was_let_go_is_no_error(root, a_moment):
    with single_flight.compile_scope(Kind.FX_ENTRY, 60.0):
        flight = enter(root)
        with single_flight.release_while_measuring():
            while is_held():
                time.sleep(0.01)
        flight.mark_found()


@pytest.mark.parametrize("most", [60.0, math.inf], ids=["a short measurement", "no rank"])
def test_measurement_that_keeps_nobody_waiting_lets_nothing_go(root, a_moment, most):
    with single_flight.compile_scope(Kind.FX_ENTRY, most):
        enter(root)
        before = timers()  # of the test's own time limit
        with single_flight.release_while_measuring():
            assert timers() == before + (most == 60.0)
            if most != 60.0:
                time.sleep(0.5)
        time.sleep(0.5)
        assert is_held() and timers() == before


def test_nobody_waits_for_what_is_as_coarse_as_what_they_hold(root, flyer):
    assert flyer(root, "AOT_ENTRY", KEY).says() == "holds"
    assert flyer(root, "FX_ENTRY", KEY).says() == "holds"
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        enter(root, key="held")
        with single_flight.compile_scope(Kind.AOT_ENTRY, math.inf):
            assert enter(root, Kind.AOT_ENTRY) is None
        with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
            assert enter(root) is None
        with single_flight.compile_scope(Kind.KERNEL, math.inf):
            assert enter(root, Kind.KERNEL) is not None and is_held()


def test_lookup_that_is_no_compile_takes_none(root):
    assert enter(root) is None
    with single_flight.compile_scope(Kind.AOT_ENTRY, math.inf):
        assert enter(root) is None
    assert not folder(root).exists()


def test_switched_off(root, compiling, settings):
    settings(SAFECACHE_SINGLE_FLIGHT=0)
    assert enter(root) is None and not folder(root).exists()


def test_threads_of_a_process_wait_for_each_other(root, compiling):
    assert enter(root) is not None
    seen = []

    def other() -> None:
        with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
            flight = enter(root)
            seen.append((flight.waited > 0, is_held()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive() and not seen
    compiles.current.flights[-1].leases.pop().release()
    thread.join(60)
    assert seen == [(True, False)]


def test_child_of_a_fork_holds_nothing(root, compiling):
    assert enter(root) is not None
    child = os.fork()
    if child == 0:
        os._exit(
            len(compiles.current.flights)
            + len([each for each in single_flight._open.now.open if each._descriptor >= 0])
        )
    assert os.waitpid(child, 0)[1] == 0
    assert is_held() and not single_flight.open_lease(Ref(Kind.FX_ENTRY, KEY, str(root))).try_to_hold()


def test_notice_names_the_holder_once(root, flyer, compiling, monkeypatch, settings, caplog):
    monkeypatch.setattr(waits, "NOTICE", 0.0)
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=1)
    holder = flyer(root, "FX_ENTRY", KEY)
    assert holder.says() == "holds"
    with caplog.at_level(logging.WARNING):
        enter(root)
        holders._state.now.given_up.clear()
        waits._state.reset()
        enter(root)
    lines = [line for line in caplog.messages if "safecache: waiting for" in line]
    assert len(lines) == 1 and f"process {holder.pid}" in lines[0] and "FX graph entry" in lines[0], lines


# What somebody who can write to the cache can do to a lease: nothing outside of it, and nobody hangs.


def plant(root, make):
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        enter(root)
        (name,) = os.listdir(folder(root))
    make(folder(root) / name)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(path.parents[3] / "precious"),
        lambda path: path.symlink_to("/dev/zero"),
        os.mkfifo,
        lambda path: path.mkdir(),
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
    ],
    ids=["link", "device", "fifo", "directory", "giant"],
)
def test_what_is_no_lease_is_left_alone(root, compiling, make):
    precious = root.parent / "precious"
    precious.write_text("mine")
    plant(root, make)
    assert enter(root) is None
    assert precious.read_text() == "mine"


def test_linked_directory_is_not_followed(root, compiling):
    home = root.parent / "home"
    home.mkdir()
    (root / metadata.FOLDER).mkdir()
    folder(root).symlink_to(home)
    assert enter(root) is None
    assert os.listdir(home) == []


@pytest.fixture
def lock_as_other_user():
    """Has a process of another user lock files, which it was let open for reading, until the test ends."""
    started = []

    def start(*paths):
        files = [os.open(path, os.O_RDONLY) for path in paths]
        reader, writer = os.pipe()
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                for file in files:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(writer, b"held")
                while True:
                    time.sleep(0.05)
            os._exit(1)
        started.append(child)
        os.close(writer)
        for file in files:
            os.close(file)
        assert os.read(reader, 4) == b"held"
        os.close(reader)

    yield start
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


KEYS = [f"key {number}" for number in range(8)]


def left(root):
    """A lease on each key, which a process has left that is gone."""
    for key in KEYS:
        lease = single_flight.open_lease(Ref(Kind.FX_ENTRY, key, str(root)))
        lease.sign(time.time())
        lease.close()
    return list(folder(root).iterdir())


@needs_root
def test_other_user_delays_a_shared_cache_until_the_limit_for_all_keys(root, settings, lock_as_other_user):
    """One that holds the lease on each key, and whatever is said in it."""
    settings(SAFECACHE_SHARED=1, SAFECACHE_SINGLE_FLIGHT_WAIT=3)
    lock_as_other_user(*left(root))
    began = time.monotonic()
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        for key in KEYS:
            assert enter(root, key=key) is None
    assert time.monotonic() - began < 3 * len(KEYS) / 2
    assert waits.get_remaining_seconds(3) == 0


@pytest.mark.parametrize("old", [False, True], ids=["new folder", "folder of an earlier release"])
def test_leases_of_a_cache_that_is_not_shared_are_private(root, old):
    """Though others may write to the cache."""
    root.chmod(0o777)
    if old:
        folder(root).mkdir(parents=True)
        folder(root).chmod(0o777)
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        enter(root)
        (name,) = os.listdir(folder(root))
        folder_status, status = folder(root).stat(), (folder(root) / name).stat()
    assert stat.S_IMODE(folder_status.st_mode) == 0o700 and stat.S_IMODE(status.st_mode) == 0o600


@needs_root
def test_other_users_folder_has_no_leases(root, compiling):
    folder(root).mkdir(parents=True)
    os.chown(folder(root), 65534, 65534)
    began = time.monotonic()
    assert enter(root) is None and not is_held() and os.listdir(folder(root)) == []
    assert time.monotonic() - began < waits.UNPROVEN


@needs_root
def test_other_user_who_may_only_read_delays_by_two_seconds_in_all(root, lock_as_other_user):
    """As of leases that lie there since a time when all could read them."""
    lock_as_other_user(*left(root))
    began = time.monotonic()
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        for key in KEYS:
            assert enter(root, key=key) is None
    assert waits.UNPROVEN <= time.monotonic() - began < waits.UNPROVEN * len(KEYS) / 2


def test_holder_of_another_key_that_the_kernel_does_not_name_delays_by_two_seconds_in_all(
    root, flyer, monkeypatch, caplog, tmp_path
):
    """As one in another container, or on another host; or a lock that outlives who has taken it."""
    monkeypatch.setattr(holders, "_LOCKS", "/dev/null")
    for key in KEYS:
        assert flyer(root, "FX_ENTRY", key, XDG_CONFIG_HOME=str(tmp_path / "other")).says() == "holds"
    began = time.monotonic()
    with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
        for key in KEYS:
            assert enter(root, key=key) is None
    assert waits.UNPROVEN <= time.monotonic() - began < waits.UNPROVEN * len(KEYS) / 2
    (line,) = (line for line in caplog.messages if "gave up waiting" in line)
    assert "a process that is not seen from here" in line


def test_holder_whose_heart_is_heard_is_waited_for(root, flyer, monkeypatch, compiling):
    """Though the kernel does not name it here."""
    monkeypatch.setattr(holders, "_LOCKS", "/dev/null")
    for key in KEYS[:2]:
        other = flyer(root, "FX_ENTRY", key)
        assert other.says() == "holds"
        threading.Timer(2 * waits.UNPROVEN, other.go_on).start()
        flight = enter(root, key=key)
        assert flight is not None and flight.waited > waits.UNPROVEN and not is_held()
        flight.mark_found()


def test_frozen_holder_whose_heart_is_not_heard_is_given_up(root, flyer, monkeypatch, compiling, impatient):
    monkeypatch.setattr(holders, "_LOCKS", "/dev/null")
    other = flyer(root, "FX_ENTRY", KEY)
    assert other.says() == "holds"
    threading.Timer(waits.UNPROVEN, os.kill, [other.pid, signal.SIGSTOP]).start()
    began = time.monotonic()
    assert enter(root) is None
    assert time.monotonic() - began < heartbeats.LAPSE + 3 * waits.UNPROVEN


def test_waits_that_find_nothing_end_after_one_limit(root, flyer, settings, caplog):
    """Each holder lets go, and has published nothing."""
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=2)
    for key in KEYS:
        other = flyer(root, "FX_ENTRY", key)
        assert other.says() == "holds"
        timer = threading.Timer(0.8, other.go_on)
        timer.start()
        with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
            enter(root, key=key)
        timer.cancel()
        timer.join()
    assert waits.get_remaining_seconds(2) == 0 and caplog.text.count("in vain for other processes") == 1


def test_waits_that_find_something_have_no_end(root, flyer, settings):
    settings(SAFECACHE_SINGLE_FLIGHT_WAIT=60)
    for key in KEYS[:3]:
        other = flyer(root, "FX_ENTRY", key)
        assert other.says() == "holds"
        threading.Timer(0.5, other.go_on).start()
        with single_flight.compile_scope(Kind.FX_ENTRY, math.inf):
            flight = enter(root, key=key)
            assert flight.waited > 0
            flight.mark_found()
    assert waits.get_remaining_seconds(60) == 60


def test_rank_waits_for_half_of_the_limit_between_two_collectives(root, flyer, monkeypatch):
    collectives = 1
    monkeypatch.setattr(waits, "_find_group", lambda: (1.0, collectives))
    for key in KEYS[:3]:
        assert flyer(root, "FX_ENTRY", key).says() == "holds"
    with single_flight.compile_scope(Kind.FX_ENTRY, 60.0):
        assert enter(root, key=KEYS[0]) is None and waits.get_remaining_seconds(60) == 0
        holders._state.reset()
        began = time.monotonic()
        assert enter(root, key=KEYS[1]) is None
        assert time.monotonic() - began < 1.0
        collectives = 2
        began = time.monotonic()
        assert enter(root, key=KEYS[2]) is None
        assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize(
    "make",
    [lambda path, victim: os.link(victim, path), lambda path, victim: victim.rename(path)],
    ids=["hard link", "renamed"],
)
def test_file_in_the_place_of_a_lease_keeps_what_it_holds(root, compiling, make):
    victim = root.parent / "precious"
    victim.write_text("mine, and of some value")
    plant(root, lambda path: make(path, victim))
    (name,) = os.listdir(folder(root))
    assert enter(root) is None
    assert (folder(root) / name).read_text() == "mine, and of some value"


@pytest.mark.parametrize("content", [b"x", b"\xff\n\n", b"1\n\nx", b"9" * 5000])
def test_what_holds_no_lease_is_none(root, compiling, content):
    plant(root, lambda path: path.write_bytes(content))
    began = time.monotonic()
    assert enter(root) is None and not is_held()
    assert time.monotonic() - began < waits.UNPROVEN


def test_lease_of_an_earlier_release_is_taken_over(root, compiling):
    plant(root, lambda path: path.write_bytes(b"4711\nboot 4026531836\n1700000000.0"))
    assert enter(root) is not None and is_held()


def test_mark_of_an_end_that_was_left_is_removed(root, compiling):
    plant(root, lambda path: path.write_bytes(b"ended"))
    assert not enter(root).waited and not is_held()
    assert enter(root) is not None and is_held()


def test_cache_that_cannot_be_written_has_none(tmp_path, compiling):
    (tmp_path / "file").write_text("")
    assert enter(tmp_path / "file") is None
    assert enter(tmp_path / "nowhere") is None


def test_lease_whose_holder_ends_while_it_is_opened_lets_look_again(root, compiling, monkeypatch):
    """Else two processes compile what the first of them has just published."""
    is_scarce = single_flight.filesystem.is_scarce

    def end_holder(descriptor):
        (path,) = folder(root).iterdir()
        path.unlink()
        return is_scarce(descriptor)

    monkeypatch.setattr(single_flight.filesystem, "is_scarce", end_holder)
    assert enter(root) is not None
