"""The compile service in processes that fork, spawn and have threads."""

from __future__ import annotations

import os

import pytest
from conftest import TESTS, python

from isolation.conftest import eventually, processes

BEFORE = """
import gc, multiprocessing, os, signal, subprocess, sys, threading, time, warnings
from safecache.isolation import client, connection
from safecache.isolation.client import Service
service = Service("isolation.stand_in", (), size=2)
def ask(what="echo", service=service, **named):
    return service.run({"what": what, **named}, sys.argv[1], timeout=60, memory=1 << 30)
def server(): return ask("surroundings").reply["server"]
def in_child(function):
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = int(not function())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.fixture
def script(tmp_path, mark):
    """Runs code in a process of its own, after which none that it has started is left; its output."""

    def script(code):
        done = python(BEFORE + code, path=TESTS, arguments=(str(tmp_path),))
        assert done.returncode == 0, done.stderr
        assert eventually(lambda: processes(mark) == [])
        return done.stdout.splitlines()

    return script


def test_a_forked_child_has_a_server_of_its_own_and_nothing_of_the_parents(script):
    """The child ends without a word to Python, so that its server must notice by itself."""
    code = """
list_open = [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"]
started = subprocess.run(list_open, close_fds=False, capture_output=True, text=True).stdout
before, modules = set(os.listdir("/proc/self/fd")), set(sys.modules)
ask("abort"), ask()
# Or a child that is forked while another thread imports a module would wait for ever when it imports that module.
print("imports nothing", set(sys.modules) <= modules)
opened = set(os.listdir("/proc/self/fd")) - before
print("holds no descriptors", len(opened) > 2, in_child(lambda: not opened & set(os.listdir("/proc/self/fd")) - before))
print("programs inherit none", subprocess.run(list_open, close_fds=False, capture_output=True, text=True).stdout == started)
ours = server()
print("own server", in_child(lambda: server() != ours), server() == ours)
one = client.get_service()
print("own service", client.get_service() is one, in_child(lambda: client.get_service() is not one))
warnings.simplefilter("error")
said = []
sys.unraisablehook = said.append
print("forgets in silence", in_child(lambda: gc.collect() >= 0 and not said))
"""
    assert script(code) == [
        *("imports nothing True", "holds no descriptors True 0", "programs inherit none True", "own server 0 True"),
        *("own service True 0", "forgets in silence 0"),
    ]


def test_the_server_of_a_killed_process_ends_though_a_child_of_that_lives(script):
    code = """
read_end, write_end = os.pipe()
if os.fork() == 0:
    told = server()
    child = os.fork()
    if child == 0:
        time.sleep(600)
    os.write(write_end, b"%d %d" % (told, child))
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
told, child = map(int, os.read(read_end, 99).split())
def lives(pid):
    try: return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError: return False
until = time.monotonic() + 60
while lives(told) and time.monotonic() < until: time.sleep(0.01)
print(lives(told), lives(child))
os.kill(child, signal.SIGKILL)
"""
    assert script(code) == ["False True"]


def test_a_child_forked_while_jobs_run_starts_anew(script):
    """Whatever locks other threads hold at that moment."""
    code = """
stop = False
def work():
    while not stop: ask("abort"), ask()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
def child():
    signal.alarm(60)
    return ask(value=1).reply["value"] == {"value": 1}
print(*{in_child(child) for _ in range(8)})
stop = True
for thread in threads: thread.join()
"""
    assert script(code) == ["0"]


def test_a_process_that_ends_leaves_no_warning_and_no_zombie(script, tmp_path):
    done = python(BEFORE + "ask()\n", path=TESTS, arguments=(str(tmp_path),), env={"PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_have_each_their_own(script, tmp_path, method):
    (tmp_path / "children.py").write_text(
        "import sys\n"
        "from safecache.isolation.client import Service\n"
        "def ask(directory):\n"
        "    service = Service('isolation.stand_in', (), size=1)\n"
        "    return service.run({'what': 'surroundings'}, directory, timeout=60, memory=1 << 30).reply['server']\n"
    )
    code = f"""
sys.path.insert(0, sys.argv[1])
from children import ask as there
if __name__ == "__main__":
    ours = server()
    with multiprocessing.get_context({method!r}).Pool(2, maxtasksperchild=1) as pool:
        theirs = pool.map(there, [sys.argv[1]] * 3, chunksize=1)
    print(len({{ours, *theirs}}), server() == ours)
"""
    assert script(code) == ["4 True"]


def test_a_process_that_ignores_or_blocks_signals_learns_how_jobs_end(script):
    """Both are inherited, and a server that ignores SIGCHLD could wait for no worker."""
    code = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGABRT})
print(ask("abort").ending.how, ask("surroundings").reply["blocked"])
service.close()
"""
    assert script(code) == ["signal []"]


def test_what_the_terminal_sends_to_the_process_does_not_reach_the_service(script):
    code = """
signal.signal(signal.SIGINT, lambda *_: None)
os.setpgid(0, 0)
before = ask("surroundings").reply
os.killpg(0, signal.SIGINT)
print(os.getsid(before["server"]) != os.getsid(0), server() == before["server"])
"""
    assert script(code) == ["True True"]


def test_two_processes_have_nothing_of_each_other(service):
    first, second = service(), service()
    assert first.server != second.server
    first.service.close()
    assert second.reply("echo")["pid"]
    assert os.getpid() not in processes(first.mark)
