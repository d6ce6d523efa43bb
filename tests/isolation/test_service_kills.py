"""SIGKILL, of the server and of the process that uses it, at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import SOURCE, TESTS

from isolation.conftest import eventually, processes
from safecache.isolation import client, connection
from safecache.isolation.client import ServiceUnavailable


def test_a_job_whose_server_is_killed_is_done_on_the_next(run):
    assert run.reply("kill_server_once")["pid"]


def test_jobs_of_all_threads_are_done_when_their_server_is_killed(service):
    run = service(size=3)
    server = run.server
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(run.reply, "sleep", seconds=0.5) for _ in range(6)]
        time.sleep(0.2)
        os.kill(server, signal.SIGKILL)
        assert all(job.result()["pid"] for job in jobs)


def test_a_server_that_is_killed_each_time_is_given_up(run):
    with pytest.raises(ServiceUnavailable, match=r"ended twice in a row.*-9"):
        run("kill_server")
    with pytest.raises(ServiceUnavailable, match="ended twice in a row"):
        run("echo")
    assert eventually(lambda: processes(run.mark) == [])


def test_after_a_while_it_is_tried_again(run, monkeypatch):
    monkeypatch.setattr(client, "_PAUSE", 0.0)
    with pytest.raises(ServiceUnavailable):
        run("kill_server")
    assert run.reply("echo", value=1)["value"] == {"value": 1}


def test_an_idle_server_that_is_killed_is_replaced_each_time_that_a_job_was_done_in_between(run):
    servers = [run.server]
    for _ in range(3):
        os.kill(servers[-1], signal.SIGKILL)
        assert eventually(lambda: processes(run.mark) == [])
        servers.append(run.server)
    assert len(set(servers)) == 4


def test_what_a_worker_has_started_ends_with_a_killed_server(run):
    assert run.reply("kill_server_beside_program") == {}
    run.service.close()
    assert eventually(lambda: processes(run.mark) == [])


def test_a_server_killed_while_it_starts_is_replaced(run):
    run.service.start()
    assert eventually(lambda: processes(run.mark)), "it has been executed"
    (server,) = processes(run.mark)
    os.kill(server, signal.SIGKILL)
    assert run.reply("echo", value=1)["value"] == {"value": 1}


@pytest.mark.parametrize("what", ["fork", "end"])
def test_a_server_that_answers_nothing_is_replaced(run, monkeypatch, what):
    """A stopped one, say. What only it could tell, how a worker has ended, is found out anew."""
    monkeypatch.setattr(connection, "_PATIENCE", 2.0)
    monkeypatch.setattr(connection, "_FAREWELL", 0.5)
    if what == "end":
        with pytest.raises(ServiceUnavailable, match="TimeoutError"):
            run("stop_server")
    else:
        os.kill(run.server, signal.SIGSTOP)
        assert len({run.reply("meet", names=["a"], own="a")["pid"] for _ in range(2)}) == 1
        with ThreadPoolExecutor(2) as threads:
            both = threads.map(lambda own: run.reply("meet", names=["b", "c"], own=own), ["b", "c"])
            assert len({reply["pid"] for reply in both}) == 2
    assert eventually(lambda: len(processes(run.mark)) <= 3)


def test_whenever_server_and_workers_are_killed_no_reply_is_wrong_and_nothing_is_left(run, monkeypatch):
    monkeypatch.setattr(client, "_PAUSE", 0.0)
    chance = random.Random(7)
    stop = threading.Event()

    def kill():
        while not stop.wait(chance.uniform(0.0, 0.3)):
            for pid in processes(run.mark):
                if chance.random() < 0.5:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def ask(number):
        try:
            if number % 2:
                return run("abort").ending
            outcome = run("echo", value=number)
            return outcome.ending or outcome.reply["value"] == {"value": number}
        except ServiceUnavailable:
            return "unavailable"

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            seen = set(threads.map(ask, range(200)))
    finally:
        stop.set()
        thread.join()
    aborted, killed = ("signal", signal.SIGABRT), ("signal", signal.SIGKILL)
    assert {True, aborted} <= seen <= {True, aborted, killed, "unavailable"}
    run.service.close()
    assert eventually(lambda: processes(run.mark) == [])


PARENT = """
import os, subprocess, sys, threading
from safecache.isolation.client import Service
service = Service("isolation.stand_in", (), size=2)
def run(what): return service.run({"what": what}, sys.argv[1], timeout=600, memory=1 << 30)
def work(what):
    while True: run(what)
def share():
    for descriptor in range(3, 64):
        if os.path.exists(f"/proc/self/fd/{descriptor}"): os.set_inheritable(descriptor, True)
    subprocess.Popen(["sleep", "600"], close_fds=False)
service.start()
print("started", flush=True)
run("echo")
if "share" in sys.argv: share()
print("ready", flush=True)
for what in sys.argv[2:]:
    if what != "share": threading.Thread(target=work, args=(what,)).start()
"""


def parent(run, *jobs):
    environment = os.environ | {"PYTHONPATH": f"{TESTS}:{SOURCE}"}
    command = [sys.executable, "-c", PARENT, str(run.directory), *jobs]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def kill(process):
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(
    "jobs",
    [[], ["hang_in_program"], ["hang_with_lock", "abort"], ["write_for_ever"]],
    ids=["idle", "hang-in-a-program", "hang-and-crashes", "flood"],
)
def test_nothing_outlives_a_killed_parent(run, jobs):
    process = parent(run, *jobs)
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    if "hang_in_program" in jobs:
        assert eventually((run.directory / "program").exists)
    kill(process)
    assert eventually(lambda: processes(run.mark) == [])


def test_nothing_outlives_a_parent_killed_at_any_moment(run):
    chance = random.Random(11)
    for _ in range(6):
        process = parent(run, "hang_in_program", "abort")
        assert process.stdout.readline() == "started\n"
        time.sleep(chance.uniform(0.0, 0.4))
        kill(process)
    assert eventually(lambda: processes(run.mark) == [])


def test_nothing_outlives_a_parent_whose_channels_somebody_else_holds_open(run):
    """As a process may that C code has forked, of which Python knows nothing."""
    process = parent(run, "share", "hang")
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    kill(process)
    assert eventually(lambda: len(processes(run.mark)) == 1)
    (holder,) = processes(run.mark)
    assert Path(f"/proc/{holder}/comm").read_text() == "sleep\n"
    os.kill(holder, signal.SIGKILL)
