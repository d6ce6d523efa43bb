"""Two ranks on two GPUs, over NCCL, in each mode and in each state of their caches: see ../single_flight/jobs.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import SOURCE, TESTS, isolated_environment
from single_flight import jobs

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"), pytest.mark.timeout(1200)]

SAMPLED = ("aot miss: sampled", "fx miss: sampled", "recompile matches", "recompile differs")


@pytest.fixture(scope="module", params=jobs.MODES)
def job(request, tmp_path_factory):
    base = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, str(TESTS / "single_flight" / "ranks.py"), request.param, "cuda"]
    common = os.environ | isolated_environment(base) | {"PYTHONPATH": str(SOURCE)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def run(environments, dies):
        ranks = [subprocess.Popen([*command, dies], env=common | each, cwd=base, **pipes) for each in environments]
        # Over NCCL the other one would wait for the group's limit.
        while dies and all(each.poll() is None for each in ranks):
            time.sleep(0.1)
        for each in ranks if dies else ():
            each.kill()
        outputs = [each.communicate(timeout=300) for each in ranks]
        if dies:
            return []
        assert [each.returncode for each in ranks] == [0, 0], outputs
        said = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
        print(json.dumps({request.param: said}))
        return said

    return jobs.Job(base, run)


@jobs.in_each_state
def test_losses_are_those_of_eager_in_each_state(job, check):
    check(job)


def test_ranks_sample_the_same_hits_and_compile_them_alike(job):
    ranks = job.start(job.copy_cache(), SAFECACHE_RECOMPILE_SAMPLE="1")
    one, other = ({name: each["stats"].get(name, 0) for name in SAMPLED} for each in ranks)
    assert one == other and one["recompile matches"] > 0 and one["recompile differs"] == 0, (one, other)
