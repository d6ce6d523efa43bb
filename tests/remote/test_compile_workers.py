"""Compile workers: what their parent knows of the remote comes with each job, so that none of them waits for it too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache import testing

from .liars import Liar

pytest.importorskip("redis")
pytest.importorskip("zstandard")

PARENT = """
import sys
import torch._inductor.compile_worker.subproc_pool
from safecache.integrations.compile_workers import WorkerPickler
from safecache.places.refs import Ref
from safecache.remote import tier
from safecache.reporting.kinds import Kind

if sys.argv[2] == "asks":
    next(tier.candidates(Ref(Kind.FX_ENTRY, "fkey", "/nowhere")), None)
with open(sys.argv[1], "wb") as file:
    file.write(WorkerPickler().dumps(len))
"""
WORKER = """
import pickle, sys
import torch._inductor.compile_worker.subproc_pool
from safecache.places.refs import Ref
from safecache.remote import tier
from safecache.reporting.kinds import Kind

with open(sys.argv[1], "rb") as file:
    assert pickle.load(file) is len
next(tier.candidates(Ref(Kind.FX_ENTRY, "fkey", "/nowhere")), None)
"""


@pytest.mark.parametrize("parent", ["asks", "does not ask"])
def test_remote_that_has_failed_for_the_parent_is_not_asked_by_a_worker(tmp_path, parent):
    server, job = Liar("silent"), tmp_path / "job"
    environment = os.environ | testing.isolated(tmp_path) | {"PYTHONPATH": str(SOURCE), "SAFECACHE_REMOTE": server.url}
    for code in (PARENT, WORKER):
        command = [sys.executable, "-c", code, str(job), parent]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    server.close()
    # By the one of them that was the first to ask.
    assert server.asked == 1
    assert done.stderr.count("no answer within") == (0 if parent == "asks" else 1), done.stderr
