"""A restart that changes no code misses nothing, whatever else is different."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE, TESTS
from scenes import omitted_scenes

pytestmark = [pytest.mark.default_release, pytest.mark.xdist_group("honest restarts")]

# What differs between the pods of a server, and from one start to the next.
NOISE = {
    "VLLM_PORT": "{}",
    "MASTER_PORT": "{}",
    "PORT": "{}",
    "VLLM_SERVICE_HOST": "10.0.0.{}",
    "VLLM_PORT_8000_TCP_ADDR": "10.0.0.{}",
    "HOSTNAME": "pod-{}",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "LOGLEVEL": "{}",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "CUDA_VISIBLE_DEVICES": "{}",
    "NVIDIA_VISIBLE_DEVICES": "GPU-{}",
    "USER": "user{}",
    "LANG": "C.UTF-8",
    "TZ": "Etc/GMT+{}",
    "MY_FEATURE": "{}",
    "RANK": "{}",
    "LOCAL_RANK": "{}",
    "WORLD_SIZE": "99",
    "VLLM_MY_PLUGIN": "{}",
    "VLLM_EXPERIMENT": "{}",
}


@pytest.fixture(scope="module")
def warm(new_home):
    home = new_home()
    answer = home.run(omitted_scenes.run_all)
    assert answer.ok, answer
    return home


def is_honest(found, stats):
    return all(hits[0] == 1 for hits in found.values()) and not {"stale", "other rank"} & {*stats}


@pytest.mark.parametrize("number", [1, 7])
def test_noise_in_the_environment_misses_nothing(warm, number):
    answer = warm.run(omitted_scenes.run_all, env={name: value.format(number) for name, value in NOISE.items()})
    assert answer.ok and is_honest(answer.result, answer.stats) and not answer.warnings, answer


def test_another_hash_seed_directory_and_place_of_the_source_miss_nothing(warm, tmp_path):
    """In a process of its own, with its sources elsewhere: as in another container."""
    code = "import json, safecache; from scenes import omitted_scenes as scenes; found = scenes.run_all()\n"
    code += "print(json.dumps([found, safecache.stats()]))"
    shutil.copytree(TESTS / "scenes", tmp_path / "elsewhere" / "scenes")
    env = os.environ | warm.environment | {"PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "elsewhere"), str(SOURCE)])
    run = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    found, stats = json.loads(run.stdout.splitlines()[-1])
    assert is_honest(found, stats), (found, stats, run.stderr[-2000:])
