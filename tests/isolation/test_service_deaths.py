"""Jobs that take their worker with them, and what this process has of that: an outcome, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from isolation.conftest import LONG, MEMORY, eventually, processes
from safecache.isolation import connection
from safecache.isolation.client import Ending, ServerLimits, ServiceUnavailable


@pytest.mark.parametrize(
    ("what", "arguments", "ending"),
    [
        pytest.param("abort", {}, ("signal", signal.SIGABRT), id="abort"),
        pytest.param("segfault", {}, ("signal", signal.SIGSEGV), id="segfault"),
        pytest.param("end", {"status": 0}, ("exit", 0), id="exit-0"),
        pytest.param("end", {"status": 127}, ("exit", 127), id="exit-127"),
        pytest.param("end_python", {"status": None}, ("exit", 0), id="sys.exit"),
        pytest.param("end_python", {"status": 3}, ("exit", 3), id="sys.exit-3"),
        pytest.param("end_python", {"status": "so long"}, ("exit", 1), id="sys.exit-message"),
        pytest.param("fail", {"kind": "KeyboardInterrupt"}, ("exit", os.EX_SOFTWARE), id="not-an-Exception"),
        pytest.param("close_everything", {}, ("signal", signal.SIGKILL), id="closes-its-channel-and-hangs"),
        pytest.param("close_everything_and_end", {"status": 5}, ("exit", 5), id="closes-its-channel-and-exits"),
        pytest.param("allocate", {}, ("memory", MEMORY), id="MemoryError"),
        pytest.param("fail", {"message": "ptxas fatal: Memory allocation failure"}, ("memory", MEMORY), id="ptxas"),
        pytest.param("fail", {"stderr": "std::bad_alloc"}, ("memory", MEMORY), id="caught-bad_alloc"),
        pytest.param("allocate_in_llvm", {}, ("memory", MEMORY), id="out-of-memory-in-LLVM"),
        pytest.param("say", {"raw": "ffffffff"}, ("exit", os.EX_PROTOCOL), id="claims-4-GB"),
        pytest.param("say", {"raw": "00000002" + b"[]".hex()}, ("exit", os.EX_PROTOCOL), id="no-object"),
        pytest.param("say", {"raw": "00000002" + b"{}".hex()}, ("exit", os.EX_PROTOCOL), id="no-reply-in-it"),
        pytest.param("say", {"raw": "00000004" + b"\xff\xfe\0\0".hex()}, ("exit", os.EX_PROTOCOL), id="no-text"),
        pytest.param("say", {"raw": "0000ffff" + "5b" * 65535}, ("exit", os.EX_PROTOCOL), id="too-deep"),
    ],
)
def test_the_next_job_runs_after_one_that_ends_so(run, what, arguments, ending):
    assert run.ending(what, **arguments) == Ending(*ending)
    assert run.reply("echo", value=1)["value"] == {"value": 1}


def test_the_peak_of_a_worker_that_died_is_told(run):
    assert run("allocate", memory=300 << 20).peak > 200 << 20


def test_python_says_on_stderr_where_it_was_when_it_crashed(run):
    said = run("segfault").stderr
    assert "Segmentation fault" in said and "in segfault" in said


@pytest.mark.parametrize("what", ["hang", "hang_with_lock", "hang_in_program", "drip"])
def test_a_job_whose_time_is_up_is_killed_with_all_that_it_has_started(run, what):
    before = run.reply("echo")["pid"]
    assert run.ending(what, timeout=1.5) == Ending("timeout", 2)
    # Only the server is left.
    assert eventually(lambda: len(processes(run.mark)) == 1)
    assert before not in processes(run.mark)
    assert (run.directory / "program").exists() is (what == "hang_in_program")
    assert run.reply("echo", value=1)["value"] == {"value": 1}


def test_what_a_dead_worker_has_started_is_killed(run):
    assert run.ending("abort_beside_program") == ("signal", signal.SIGABRT)
    pid = int((run.directory / "program").read_text())
    assert eventually(lambda: pid not in processes(run.mark))


def test_a_hang_holds_up_no_other_job(run):
    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(run, "hang", timeout=3)
        for number in range(20):
            assert run.reply("echo", value=number)["value"] == {"value": number}
        assert hanging.result().ending == ("timeout", 3)


def test_a_flood_of_output_is_cut_and_reaches_nobody(run, capfd):
    outcome = run("write_for_ever", timeout=1.0)
    assert outcome.ending == ("timeout", 1)
    assert len(outcome.stderr) < 2 * connection.MOST_BYTES + 100 and "bytes left out" in outcome.stderr
    assert capfd.readouterr() == ("", "")


def test_the_beginning_and_the_end_of_much_output_are_kept(run):
    said = run("write", text="".join(f"{number:06}\n" for number in range(1000)), times=100).stderr
    assert said.startswith("000000\n000001\n") and said.endswith("000998\n000999\n")
    assert run("echo").stderr == ""


def test_a_job_that_closes_its_output_is_waited_for_without_asking_again_and_again(run, monkeypatch):
    read, times = connection.Output.read, []
    monkeypatch.setattr(connection.Output, "read", lambda self: (times.append(self), read(self))[1])
    assert run.reply("close_output")["pid"]
    assert len(times) < 20


def test_descriptors_that_a_worker_sends_are_not_taken(run):
    before = len(os.listdir("/proc/self/fd"))
    assert run("pass_descriptor").reply == {}
    run.service.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_worker_killed_between_two_jobs_costs_none(run):
    """As by the kernel, when memory is short."""
    pid = run.reply("echo")["pid"]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: pid not in processes(run.mark))
    assert run.reply("echo")["pid"] != pid


def test_a_worker_killed_before_it_has_read_its_job_costs_none(run):
    pid = run.reply("echo")["pid"]
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(run.reply, "echo")
        os.kill(pid, signal.SIGKILL)
        assert job.result()["pid"] != pid


def test_a_worker_killed_while_it_works_is_a_death(run):
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(run.ending, "hang_in_program")
        assert eventually((run.directory / "program").exists)
        program = int((run.directory / "program").read_text())
        worker = int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        assert job.result() == ("signal", signal.SIGKILL)
    assert eventually(lambda: program not in processes(run.mark))


def test_workers_that_never_read_a_job_are_given_up(run, monkeypatch):
    asked = []

    def ask(self, request, deadline):
        asked.append(self)
        raise connection.UnreadError

    monkeypatch.setattr(connection.Worker, "ask", ask)
    with pytest.raises(ServiceUnavailable, match="before it has read the job"):
        run("echo")
    assert 1 < len(asked) < 10


def test_a_worker_that_is_no_group_of_its_own_yet_is_killed(service, tmp_path, monkeypatch):
    (tmp_path / "ungrouped.py").write_text(
        "import os, time\nfrom isolation.stand_in import run\nos.setsid = lambda: time.sleep(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = service("ungrouped")
    assert run.ending("echo", timeout=0.1) == ("timeout", 1)
    # Only the server is left.
    assert len(processes(run.mark)) == 1


def test_how_a_worker_has_ended_is_kept_for_who_asks_and_told_once(run):
    run("echo")
    server = run.service.connect()
    worker = connection.Worker(server, 101)
    os.kill(worker._pid, signal.SIGKILL)
    assert eventually(lambda: worker._pid not in processes(run.mark))
    # After each answer, the server looks for those that have ended.
    another = connection.Worker(server, 102)
    assert [server.end(101, 0.0).status for _ in range(2)] == [-signal.SIGKILL, None]
    another.let_go()
    assert server.end(102, 10.0).status == os.EX_OK
    worker.let_go()


def test_a_server_to_which_nothing_more_can_be_sent_ends(run):
    run("echo")
    run.service.connect()._control.shutdown(socket.SHUT_WR)
    assert eventually(lambda: processes(run.mark) == [])


@pytest.mark.parametrize("while_it_runs", [False, True], ids=["between-two-jobs", "while-a-job-runs"])
def test_a_process_that_closes_descriptors_it_does_not_know_has_its_jobs_done(run, while_it_runs):
    """As programs do that make daemons of themselves."""
    before = set(os.listdir("/proc/self/fd"))
    run("echo")
    ours = [int(name) for name in set(os.listdir("/proc/self/fd")) - before]
    with ThreadPoolExecutor(1) as thread:
        jobs = [thread.submit(run.reply, "sleep", seconds=1)] if while_it_runs else []
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in ours:
            with suppress(OSError):  # that of the listing itself
                os.fstat(descriptor)
                os.dup2(nothing, descriptor)
        os.close(nothing)
        jobs.append(thread.submit(run.reply, "echo"))
        assert all(job.result()["pid"] for job in jobs)


@pytest.mark.parametrize("timeout", [0.0, -1.0, 1e-9])
def test_a_job_without_any_time_is_a_timeout(run, timeout):
    run("echo")
    assert run.ending("hang", timeout=timeout).how == "timeout"


def held(directory):
    """What this process, its temporary directory and the shared memory hold."""
    folders = ("/proc/self/fd", "/dev/shm", directory)
    return {(folder, name) for folder in folders for name in os.listdir(folder)}


def test_nothing_is_left_of_hundreds_of_crashes(service, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    run = service(size=2, limits=ServerLimits(jobs=60))
    kinds = ["abort_and_leave_a_file", "segfault"]
    run(kinds[0])
    before = held(temporary)
    with ThreadPoolExecutor(2) as threads:
        endings = {outcome.ending for outcome in threads.map(run, kinds * 150)}
    assert endings == {Ending("signal", signal.SIGSEGV), Ending("signal", signal.SIGABRT)}
    assert eventually(lambda: held(temporary) <= before), held(temporary) - before
    assert eventually(lambda: len(processes(run.mark)) == 1, LONG)
    children = Path(f"/proc/{processes(run.mark)[0]}/task/{processes(run.mark)[0]}/children").read_text()
    assert children == ""
    assert run.reply("echo", value=1)["value"] == {"value": 1}
