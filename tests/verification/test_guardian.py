"""What is compiled again ends with the program, however that ends, with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import SOURCE

# Stands for a compile: it starts a compiler of its own, names both, and hangs.
HANGS = (
    "import os, subprocess, sys, time;"
    "from types import ModuleType;"
    "from safecache.verification import guardian;"
    "worker = ModuleType('worker');"
    "sys.modules['safecache.verification.worker'] = worker;"
    "import safecache.verification;"
    "safecache.verification.worker = worker;"
    "hang = lambda *_: (print(os.getpid(), subprocess.Popen(['sleep', '1000']).pid, flush=True), time.sleep(1000));"
    "worker.main = hang;"
    "guardian.main(0, 1, sys.argv[1], float(sys.argv[2]), os.getppid())"
)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start(directory, seconds):
    directory.mkdir()
    command = [sys.executable, "-c", HANGS, str(directory), str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


def ended(pids):
    for _ in range(200):
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", ["program ends", "takes too long", "guardian is killed"])
def test_nothing_is_left(tmp_path, how):
    process, pids = start(tmp_path / "its own", 1 if how == "takes too long" else 1000)
    assert len(pids) == 2
    # The pipe by which the program's end is known is not the compile's to read.
    assert how == "takes too long" or os.readlink(f"/proc/{pids[0]}/fd/0") == os.devnull
    assert how == "takes too long" or os.sched_getscheduler(pids[0]) == os.SCHED_IDLE
    assert how == "takes too long" or all(map(is_alive, pids))
    if how == "program ends":
        process.stdin.close()
    elif how == "guardian is killed":
        process.kill()
    status = process.wait(60)
    assert ended(pids[:1])
    if how == "guardian is killed":
        os.kill(pids[1], signal.SIGKILL)  # a compiler, which ends by itself
    else:
        assert status == os.EX_TEMPFAIL
        assert ended(pids)
        assert not (tmp_path / "its own").exists()
    process.stdout.close()
    process.stdin.close()


# A program that ends at once, while another process holds the other end of its pipe.
PROGRAM = (
    "import subprocess, sys;"
    "process = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.PIPE, start_new_session=True);"
    "print(process.stdout.readline().decode(), flush=True)"
)


def test_nothing_is_left_where_another_process_holds_the_pipe_of_a_program_that_has_ended(tmp_path):
    (tmp_path / "its own").mkdir()
    read, write = os.pipe()
    command = [sys.executable, "-c", PROGRAM, HANGS, str(tmp_path / "its own"), "1000"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"}
    with os.fdopen(read), os.fdopen(write, "w"):
        done = subprocess.run(
            command, stdin=read, capture_output=True, text=True, env=environment, timeout=60, check=True
        )
        pids = [int(pid) for pid in done.stdout.split()]
        assert len(pids) == 2 and ended(pids)
