"""What the compile service does for jobs that end well."""

from __future__ import annotations

import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import TESTS, python

from isolation.conftest import LONG, eventually, processes
from safecache.isolation import client
from safecache.isolation.client import ServerLimits, ServiceUnavailable


def test_a_job_is_replied_to_from_another_process(run):
    outcome = run("echo", value=[1, "zwei", None])
    assert outcome.reply == {
        "value": {"value": [1, "zwei", None]},
        "pid": outcome.reply["pid"],
        "directory": str(run.directory),
    }
    assert outcome.reply["pid"] != os.getpid()
    assert (outcome.ending, outcome.stderr, outcome.peak) == (None, "", 0)


def test_one_job_after_the_other_runs_on_the_same_worker(run):
    assert len({run.reply("echo")["pid"] for _ in range(20)}) == 1


def test_jobs_of_several_threads_run_at_once_on_as_many_workers(service):
    run = service(size=3)
    names = ["a", "b", "c"]
    with ThreadPoolExecutor(3) as threads:
        replies = list(threads.map(lambda name: run.reply("meet", names=names, own=name), names))
    assert len({reply["pid"] for reply in replies}) == 3


def test_many_threads_get_each_their_own_reply_from_no_more_workers_than_there_are(run):
    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(lambda number: run.reply("echo", number=number), range(200)))
    assert [reply["value"]["number"] for reply in replies] == list(range(200))
    assert len({reply["pid"] for reply in replies}) <= 2


def test_a_large_job_and_a_large_reply_arrive_whole(run):
    text = "größer" * (1 << 20)
    assert run.reply("reply", reply={"text": text}) == {"text": text}


def test_a_job_too_large_to_be_sent_is_said_to_be_so(run):
    with pytest.raises(ServiceUnavailable, match=r"a message of .* bytes"):
        run("echo", value="x" * (65 << 20))
    assert run.reply("echo", value=1)["value"] == {"value": 1}


def test_a_job_sees_the_environment_as_it_is_at_that_moment(run, monkeypatch):
    names = ["TRITON_ADDED", "MLIR_CHANGED", "CUDA_REMOVED", "ODD"]
    monkeypatch.setenv("MLIR_CHANGED", "before")
    monkeypatch.setenv("CUDA_REMOVED", "1")
    run("echo")
    monkeypatch.setenv("TRITON_ADDED", "1")
    monkeypatch.setenv("MLIR_CHANGED", "after")
    monkeypatch.delenv("CUDA_REMOVED")
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff=\n"))
    seen = run.reply("surroundings", names=names)["variables"]
    assert seen == {
        "TRITON_ADDED": "1",
        "MLIR_CHANGED": "after",
        "CUDA_REMOVED": None,
        "ODD": os.fsdecode(b"\xff=\n"),
    }


def test_a_job_sees_the_environment_that_it_brings_instead(run, monkeypatch):
    monkeypatch.setenv("TRITON_OURS", "1")
    seen = run.reply("surroundings", names=["TRITON_OURS", "TRITON_ITS"], environment={"TRITON_ITS": "2"})
    assert seen["variables"] == {"TRITON_OURS": None, "TRITON_ITS": "2"}


def test_a_job_runs_in_our_working_directory_and_the_worker_leaves_it(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = run.reply("surroundings")
    assert seen["cwd"] == str(tmp_path)
    pid = run.reply("echo")["pid"]
    assert eventually(lambda: os.readlink(f"/proc/{pid}/cwd") == "/")


def test_a_job_runs_though_our_working_directory_is_gone(run, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run.reply("surroundings")["cwd"] == "/"


def test_temporary_files_of_a_job_lie_in_its_directory(run):
    directories = [run.directory / "first", run.directory / "second"]
    seen = []
    for run.directory in directories:
        run.directory.mkdir()
        seen.append(run.reply("surroundings")["temporary"])
    assert seen == [str(directory / ".tmp") for directory in directories]


def test_a_worker_is_a_group_of_its_own_bounded_and_the_first_to_be_killed(run):
    seen = run.reply("surroundings", memory=3 << 30)
    assert seen["is_leader"] and seen["score"] == "500" and seen["data"] == 3 << 30
    assert seen["threads"] == 1


def test_no_core_is_dumped_of_a_worker_though_it_may_be_of_this_process(run):
    before, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    try:
        assert run.reply("surroundings")["core"] == ([1, 1] if most else [0, 0])
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (before, most))


def test_a_worker_holds_no_descriptor_but_its_own(service):
    """Nor one of another worker, which would hide that one's end."""
    run = service(size=3)
    names = ["a", "b", "c"]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda name: run.reply("meet", names=names, own=name), names))
        seen = list(threads.map(lambda _: run.reply("surroundings")["descriptors"], range(12)))
    # The three standard ones, the channel, and the one that lists them.
    assert {len(each) for each in seen} == {5}


def test_a_limit_of_memory_is_for_one_job(run):
    assert run.ending("allocate", memory=256 << 20) == ("memory", 256 << 20)
    assert run.reply("grow", size=300 << 20, memory=1 << 30)


def test_what_a_job_prints_comes_with_its_outcome_and_goes_nowhere_else(run, capfd):
    outcome = run("write", text="to stdout\n")
    assert outcome.stderr == "to stdout\n"
    assert run("reply", reply={}, stdout="buffered").stderr == "buffered"
    assert run("echo").stderr == ""
    assert capfd.readouterr() == ("", "")


def test_a_failed_job_is_a_reply_that_names_the_error(run):
    reply = run.reply("fail", message="no such thing")
    assert reply == {"error": {"type": "builtins.ValueError", "message": "no such thing", "stage": ""}}


def test_a_reply_that_is_no_json_is_a_failed_job(run):
    assert run.reply("reply_no_json")["error"]["type"] == "builtins.TypeError"


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        pytest.param("reply", {"reply": {"tainted": True}}, id="that-says-it-is-tainted"),
        pytest.param("fail", {"stderr": "PLEASE submit a bug report\n"}, id="that-failed-and-wrote-something"),
        pytest.param("grow", {"size": 200 << 20}, id="that-has-grown"),
    ],
)
def test_a_worker_is_replaced(service, what, arguments):
    run = service(limits=ServerLimits(resident=200 << 20), size=1)
    before = run.reply("echo")["pid"]
    assert run(what, **arguments).reply is not None
    assert run.reply("echo")["pid"] != before
    assert eventually(lambda: before not in processes(run.mark))


def test_a_worker_that_failed_and_wrote_nothing_goes_on(run):
    before = run.reply("echo")["pid"]
    run.reply("fail")
    assert run.reply("echo")["pid"] == before


def test_a_worker_is_replaced_after_so_many_jobs(service):
    run = service(limits=ServerLimits(jobs=3), size=1)
    pids = [run.reply("echo")["pid"] for _ in range(7)]
    assert [pids.index(pid) for pid in pids] == [0, 0, 0, 3, 3, 3, 6]


def test_idle_workers_end_and_the_next_job_has_another(service):
    run = service(limits=ServerLimits(worker_idle=0.2))
    before = run.reply("echo")["pid"]
    assert eventually(lambda: before not in processes(run.mark))
    assert run.reply("echo")["pid"] != before


def test_an_idle_server_ends_and_the_next_job_has_another(service):
    run = service(limits=ServerLimits(worker_idle=0.2, server_idle=0.6))
    before = run.server
    assert eventually(lambda: processes(run.mark) == [])
    for _ in range(3):
        assert run.server != before


def test_a_server_does_not_end_while_a_job_runs(service):
    """Nor is it replaced for those that come meanwhile."""
    run = service(limits=ServerLimits(worker_idle=0.2, server_idle=0.3))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run.reply, "sleep", seconds=3)
        servers = {run.server}
        time.sleep(1.5)
        servers |= {run.server, running.result()["server"]}
    assert len(servers) == 1


def test_a_closed_service_has_no_processes_and_serves_again(run):
    run("echo")
    run.service.close()
    run.service.close()
    assert processes(run.mark) == []
    assert run.reply("echo", value=1)["value"] == {"value": 1}


def test_closing_ends_what_runs_and_says_so(run):
    failures = []

    def hang():
        try:
            run("hang_in_program")
        except ServiceUnavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=hang)
    thread.start()
    assert eventually((run.directory / "program").exists)
    run.service.close()
    thread.join(LONG)
    assert failures == ["the compile service was closed"]
    assert eventually(lambda: processes(run.mark) == [])


def test_start_has_the_server_up_before_the_first_job(run):
    run.service.start()
    # Until it runs its program, it has no environment to be known by.
    assert eventually(lambda: len(processes(run.mark)) == 1)
    assert processes(run.mark) == [run.server]


def test_an_interrupted_job_leaves_no_process_running_it(run):
    """As by Ctrl-C, in the thread that waits for it."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from safecache.isolation.client import Service\n"
        "from safecache.isolation.protocol import TEMPORARY\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # of a job in the background it is ignored
        "service = Service('isolation.stand_in', (), size=1)\n"
        "def interrupt():\n"
        "    while not os.path.isdir(os.path.join(sys.argv[1], TEMPORARY)): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "run = lambda what: service.run({'what': what}, sys.argv[1], timeout=60, memory=1 << 30)\n"
        "try: run('hang')\n"
        "except KeyboardInterrupt: print('interrupted', 'pid' in run('echo').reply, flush=True)\n"
    )
    done = python(code, path=TESTS, arguments=(str(run.directory),))
    assert done.stdout == "interrupted True\n", done.stderr
    assert eventually(lambda: processes(run.mark) == [])


@pytest.mark.parametrize(
    ("allowed", "quota", "ranks", "expected"),
    [
        (2, None, None, 2),
        (64, None, None, 8),
        (64, "max 100000", "", 8),
        (64, "250000 100000", None, 2),
        (64, "50000 100000", None, 1),
        (64, None, "2", 4),
        (64, None, "16", 1),
        (64, None, "many", 8),
        (64, None, "0", 8),
    ],
)
def test_there_are_as_many_workers_as_cpus_shared_by_ranks(tmp_path, monkeypatch, allowed, quota, ranks, expected):
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    (tmp_path / "groups").write_text("0::/\n")
    monkeypatch.setattr(client, "_GROUPS", str(tmp_path))
    monkeypatch.setattr(client, "_OWN_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert client.count_workers() == expected
