"""A worker by itself, in the surroundings that a host or a server that ends may leave it."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE

from safecache.isolation import protocol

CODE = """
import resource, sys
import stand_in
from safecache.isolation import server as service

channel, output, server, limit, most = map(int, sys.argv[1:])
if limit >= 0:
    resource.setrlimit(limit, (most, most))
service.work(channel, output, server, stand_in.run, 60)
"""


@pytest.fixture
def worker(tmp_path):
    """Starts one, under a limit if need be; gives the channel to it, and the process."""
    ours, theirs = socket.socketpair()
    started = []

    def start(server=None, limit=-1, most=0):
        with theirs, open(tmp_path / "output", "wb") as output:
            numbers = [theirs.fileno(), output.fileno(), server or os.getpid(), limit, most]
            process = subprocess.Popen(
                [sys.executable, "-c", CODE, *map(str, numbers)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, Path(__file__).parent)))},
                pass_fds=numbers[:2],
            )
        started.append(process)
        return ours, process

    yield start
    ours.close()
    for process in started:
        process.kill()
        process.wait()


def surroundings(channel, directory, memory=1 << 30):
    job = {"what": "surroundings", "environment": {}}
    protocol.send(channel, {"job": job, "directory": str(directory), "cwd": "/", "memory": memory})
    return protocol.receive(channel)["reply"]


def test_worker_whose_server_has_died_by_then_ends(worker):
    _, process = worker(server=1)
    assert process.wait(60) == os.EX_OSERR


def test_worker_that_nobody_wants_any_more_ends_well(worker):
    channel, process = worker()
    channel.close()
    assert process.wait(60) == os.EX_OK


def test_worker_dumps_no_core_where_none_may_be_dumped(worker, tmp_path):
    channel, _ = worker(limit=resource.RLIMIT_CORE)
    assert surroundings(channel, tmp_path)["core"] == [0, 0]


def test_memory_is_limited_no_further_than_the_host_lets_it(worker, tmp_path):
    channel, _ = worker(limit=resource.RLIMIT_DATA, most=1 << 30)
    assert surroundings(channel, tmp_path, memory=1 << 40)["data"] == 1 << 30
    assert surroundings(channel, tmp_path, memory=1 << 29)["data"] == 1 << 29
