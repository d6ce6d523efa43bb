"""What ``tests/bench/bench.py isolate`` compiles: enough, each once, and a tenth that crashes where that is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import kernels


def test_there_are_thirty_configurations_and_none_twice():
    sound = kernels.jobs(crashing=False)
    assert len(sound) >= 30 and len({repr(job) for job in sound}) == len(sound)
    assert not any(job.kernel is kernels.wrong_operand for job in sound)


def test_a_tenth_more_crash_and_each_is_another_one():
    jobs = kernels.jobs(crashing=True)
    crashing = [job for job in jobs if job.kernel is kernels.wrong_operand]
    assert 0.08 < len(crashing) / len(jobs) < 0.12 and len({repr(job) for job in crashing}) == len(crashing)
    assert [job for job in jobs if job not in crashing] == kernels.jobs(crashing=False)


@pytest.mark.default_release
def test_tuning_compiles_a_dozen_configurations(home):
    script = Path(kernels.__file__).with_name("compiles.py")
    command = [sys.executable, script, "tune"]
    done = subprocess.run(command, env=home.environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == len(list(home.cache.glob("*/matmul.cubin"))) == 12
