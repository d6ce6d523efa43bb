"""How the server comes up: clean, with what this process would import, or not at all and for a reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from isolation.conftest import eventually, processes
from safecache.isolation import connection
from safecache.isolation.client import ServerLimits, ServiceUnavailable
from safecache.reporting.waits import Breaker


def test_the_server_has_triton_and_neither_torch_nor_site_nor_threads(service):
    pytest.importorskip("triton")
    seen = service(imports=("triton",)).reply("surroundings")
    modules = set(seen["modules"])
    assert "triton" in modules and seen["threads"] == 1
    assert not {"torch", "site", "sitecustomize", "pytest"} & modules


def test_a_server_that_is_up_writes_to_nothing_of_ours(run):
    assert {os.readlink(f"/proc/{run.server}/fd/{number}") for number in (0, 1, 2)} == {os.devnull}


def test_the_server_runs_no_code_of_the_users_environment(service, tmp_path, monkeypatch):
    for name in ("sitecustomize.py", "usercustomize.py", "resource.py", "evil.pth"):
        (tmp_path / name).write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "sitecustomize.py"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), "", *sys.path])
    monkeypatch.chdir(tmp_path)
    assert service().reply("echo")
    assert not (tmp_path / "ran").exists()


def test_the_server_finds_modules_where_this_process_does(service, tmp_path, monkeypatch):
    """Also those on a path that is relative, and those that are on none, of an editable install."""
    package = tmp_path / "packages" / "only_here"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from isolation.stand_in import *\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["packages", 7, *sys.path])
    __import__("only_here")
    assert service("only_here", ("only_here",)).reply("echo")
    monkeypatch.setattr(sys, "path", sys.path[2:])
    assert service("only_here", ("only_here",)).reply("echo")
    del sys.modules["only_here"]


def test_a_server_that_would_import_something_else_is_refused(service, tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name / "twice").mkdir(parents=True)
        (tmp_path / name / "twice" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "first")
    __import__("twice")
    monkeypatch.syspath_prepend(tmp_path / "second")
    run = service(imports=("twice",))
    with pytest.raises(
        ServiceUnavailable, match=r"it would compile with the twice of .*second.*and this process has .*first"
    ):
        run("echo")
    assert processes(run.mark) == []
    del sys.modules["twice"]


def refused(run, reason):
    """Every job is, for the same reason, and nothing is left that would try."""
    for _ in range(2):
        with pytest.raises(ServiceUnavailable, match=reason):
            run("echo")
    assert processes(run.mark) == []


def test_a_server_that_cannot_import_says_what(service):
    refused(service(imports=("no_such_module",)), "ModuleNotFoundError: No module named 'no_such_module'")


def test_a_server_that_dies_of_an_import_says_how(service, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os, sys; sys.stderr.write('libtriton.so: oh no'); os.abort()")
    monkeypatch.syspath_prepend(tmp_path)
    refused(service(imports=("deadly",)), "(?s)ended twice in a row.*-6.*libtriton.so: oh no")


def test_a_server_that_is_never_ready_is_given_up(service, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_FAREWELL", 3600.0)  # it is not asked to end, but killed
    (tmp_path / "endless.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    refused(service(imports=("endless",), limits=ServerLimits(start=0.5)), "not ready after")


@pytest.mark.parametrize("executable", ["", None, "/no/such/python", "/bin/true"])
def test_without_an_interpreter_there_is_no_server(service, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    refused(service(), "compile server")


def test_a_frozen_program_is_no_interpreter(service, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    refused(service(), "no Python interpreter")


def test_where_no_process_can_be_started_there_is_no_server(service, monkeypatch):
    def popen(*arguments, **named):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = len(os.listdir("/proc/self/fd"))
    refused(service(), "BlockingIOError.*temporarily unavailable")
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_there_are_no_socket_pairs_there_is_no_server(service, monkeypatch):
    def socketpair(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socketpair", socketpair)
    refused(service(), "PermissionError")


def test_where_descriptors_cannot_be_passed_there_is_no_worker(service, monkeypatch):
    def send_fds(*arguments):
        raise PermissionError(1, "Operation not permitted")

    run = service()
    monkeypatch.setattr(socket, "send_fds", send_fds)
    with pytest.raises(ServiceUnavailable, match="Operation not permitted"):
        run("echo")


def test_where_descriptors_get_lost_on_the_way_there_is_no_worker(service, monkeypatch):
    run = service()
    monkeypatch.setattr(socket, "send_fds", lambda channel, parts, descriptors: channel.send(parts[0]))
    with pytest.raises(ServiceUnavailable, match="no worker can be started: TypeError"):
        run("echo")


def test_where_no_worker_can_be_forked_there_is_none_until_one_can(service, monkeypatch):
    run = service()
    run("abort")
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(connection, "open_pipe", lambda: os.open("/no/such", 0))
        with pytest.raises(ServiceUnavailable, match="no worker can be started"):
            run("echo")
    assert len(os.listdir("/proc/self/fd")) == before
    assert run.reply("echo")["pid"]


def test_a_server_that_may_not_fork_says_so_and_lives_on(service, tmp_path, monkeypatch):
    (tmp_path / "unforking.py").write_text(
        "import os\n"
        "from isolation.stand_in import run\n"
        "fork, times = os.fork, []\n"
        "def refuse():\n"
        "    times.append(None)\n"
        "    if len(times) > 1: return fork()\n"
        "    raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork = refuse\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = service("unforking")
    with pytest.raises(ServiceUnavailable, match=r"no worker can be started: BlockingIOError.*temporarily unavailable"):
        run("echo")
    assert run.reply("echo")["pid"]


def test_no_memory_file_is_needed(service, monkeypatch):
    def memfd_create(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", memfd_create)
    assert service().reply("echo")


def test_what_could_not_be_started_is_tried_again_after_a_while(service, monkeypatch):
    run = service()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "")
        refused(run, "no Python interpreter")
    refused(run, "no Python interpreter")
    monkeypatch.setattr(run.service, "_failing", Breaker())
    assert run.reply("echo")


def test_starting_fails_in_silence_and_the_first_job_says_why(service, monkeypatch):
    run = service()
    monkeypatch.setattr(sys, "executable", "")
    run.service.start()
    refused(run, "no Python interpreter")


def test_a_server_started_ahead_ends_with_the_service_that_never_used_it(service):
    run = service()
    run.service.start()
    run.service.close()
    assert eventually(lambda: processes(run.mark) == [])
