"""Jobs for the workers of the tests, in place of compiles: ``what`` names one of the functions below."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def run(job, directory):
    arguments = {name: value for name, value in job.items() if name not in ("what", "environment")}
    return globals()[job["what"]](directory, **arguments)


def echo(directory, **value):
    return {"value": value, "pid": os.getpid(), "directory": directory}


def surroundings(directory, names=()):
    """What a job sees of its process."""
    return {
        "variables": {name: os.environ.get(name) for name in names},
        "cwd": os.getcwd(),
        "temporary": tempfile.gettempdir(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "data": resource.getrlimit(resource.RLIMIT_DATA)[0],
        "score": Path("/proc/self/oom_score_adj").read_text().strip(),
        "is_leader": os.getsid(0) == os.getpid() == os.getpgid(0),
        "threads": int(Path("/proc/self/status").read_text().split("Threads:")[1].split()[0]),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "modules": sorted(sys.modules),
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "server": os.getppid(),
    }


def sleep(directory, seconds):
    time.sleep(seconds)
    return {"pid": os.getpid(), "server": os.getppid()}


def meet(directory, names, own):
    """Return when all of the others have come too."""
    Path(directory, own).touch()
    while not all(Path(directory, name).exists() for name in names):
        time.sleep(0.005)
    return {"pid": os.getpid()}


def abort(directory):
    ctypes.CDLL(None).abort()


def segfault(directory):
    ctypes.string_at(0)


def abort_in_program(directory):
    """As ptxas would, with its input in TMPDIR."""
    tempfile.mkstemp()
    return {"status": subprocess.run([sys.executable, "-S", "-c", "import os; os.abort()"]).returncode}


def abort_and_leave_a_file(directory):
    tempfile.mkstemp()
    abort(directory)


def end(directory, status):
    os._exit(status)


def end_python(directory, status):
    sys.exit(status)


def fail(directory, kind="ValueError", message="no such thing", stderr=""):
    sys.stderr.write(stderr)
    raise getattr(__builtins__, kind, None) or __builtins__[kind](message)


def reply(directory, reply, stdout=""):
    print(stdout, end="")
    return reply


def reply_no_json(directory):
    return {"value": object()}


def hang(directory):
    time.sleep(600)


def hang_with_lock(directory):
    """As C++ that never lets go of the GIL."""
    ctypes.PyDLL(None).sleep(600)


def hang_in_program(directory):
    """As ptxas would, were it stubborn too; tells its pid."""
    child = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE)
    child.stdout.readline()
    draft = Path(directory, "draft")
    draft.write_text(str(child.pid))
    draft.rename(Path(directory, "program"))
    child.wait()


def abort_beside_program(directory):
    child = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE)
    child.stdout.readline()
    Path(directory, "program").write_text(str(child.pid))
    abort(directory)


def allocate(directory, size=1 << 24):
    held = []
    while True:
        held.append(bytearray(size))


def allocate_in_llvm(directory):
    """How LLVM ends that is refused memory."""
    sys.stderr.write("LLVM ERROR: out of memory\nAllocation failed\n")
    abort(directory)


def grow(directory, size):
    """To a resident size, without a limit in the way."""
    grow.held = b"x" * size
    return {"pid": os.getpid()}


def write(directory, text, times=1):
    for _ in range(times):
        os.write(1, text.encode())
    return {"pid": os.getpid()}


def write_for_ever(directory):
    while True:
        os.write(2, b"x" * 65536)


def close_output(directory):
    os.close(1)
    os.close(2)
    time.sleep(0.2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    return {"pid": os.getpid()}


def close_everything(directory):
    os.closerange(0, 256)
    time.sleep(600)


def close_everything_and_end(directory, status):
    """Once all but its end is to be seen of it."""
    os.closerange(0, 256)
    time.sleep(0.1)
    os._exit(status)


def say(directory, raw):
    """Write these bytes, in hexadecimal, where the reply goes."""
    os.write(_channel(), bytes.fromhex(raw))
    time.sleep(600)


def drip(directory):
    """A reply that never ends."""
    os.write(_channel(), b"\0\1\0\0")
    while True:
        os.write(_channel(), b" ")
        time.sleep(0.01)


def pass_descriptor(directory):
    """Have one more descriptor come with the reply."""
    channel = socket.socket(fileno=os.dup(_channel()))
    body = b'{"reply":{},"resident":1}'
    socket.send_fds(channel, [len(body).to_bytes(4, "big") + body], [0])
    time.sleep(600)


def _channel():
    return next(fd for fd in range(3, 64) if _is_socket(fd))


def _is_socket(descriptor):
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def kill_server(directory):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def kill_server_once(directory):
    """Only the first time, so that the second server has one that works."""
    flag = Path(directory, "killed")
    if not flag.exists():
        flag.touch()
        kill_server(directory)
    return {"pid": os.getpid()}


def kill_server_beside_program(directory):
    child = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE)
    child.stdout.readline()
    Path(directory, "program").write_text(str(child.pid))
    if not Path(directory, "killed").exists():
        Path(directory, "killed").touch()
        kill_server(directory)
    child.kill()
    return {}


def stop_server(directory):
    """A server that answers nothing, and then a death that only it could tell of."""
    os.kill(os.getppid(), signal.SIGSTOP)
    abort(directory)
