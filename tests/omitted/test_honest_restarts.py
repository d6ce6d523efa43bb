"""A restart that changes no code misses nothing, whatever else is different: fifty starts, of ten cases each."""

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
    "ports": {"VLLM_PORT": "{}", "MASTER_PORT": "{}", "PORT": "{}"},
    "kubernetes": {"VLLM_SERVICE_HOST": "10.0.0.{}", "VLLM_PORT_8000_TCP_ADDR": "10.0.0.{}", "HOSTNAME": "pod-{}"},
    "log levels": {"VLLM_LOGGING_LEVEL": "DEBUG", "LOGLEVEL": "{}", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    "devices": {"CUDA_VISIBLE_DEVICES": "{}", "NVIDIA_VISIBLE_DEVICES": "GPU-{}"},
    "user": {"USER": "user{}", "LANG": "C.UTF-8", "TZ": "Etc/GMT+{}", "MY_FEATURE": "{}"},
    "ranks": {"RANK": "{}", "LOCAL_RANK": "{}", "WORLD_SIZE": "99"},
    "undeclared": {"VLLM_MY_PLUGIN": "{}", "VLLM_EXPERIMENT": "{}"},
}
ROUNDS = 7


@pytest.fixture(scope="module")
def warm(new_home):
    home = new_home()
    answer = home.run(omitted_scenes.run_all)
    assert answer.ok, answer
    return home


@pytest.mark.parametrize("noise", NOISE)
def test_noise_in_the_environment_misses_nothing(warm, noise):
    for number in range(1, ROUNDS + 1):
        env = {name: value.format(number) for name, value in NOISE[noise].items()}
        answer = warm.run(omitted_scenes.run_all, env=env)
        assert answer.ok and all(hits[0] == 1 for hits in answer.result.values()), answer
        assert not answer.warnings and not {"stale", "other rank"} & {*answer.stats}, answer


def test_another_hash_seed_directory_and_place_of_the_source_miss_nothing(home, tmp_path):
    """In processes of their own, each with its sources elsewhere: as in two containers."""
    code = "import json, safecache; from scenes import omitted_scenes as scenes; found = scenes.run_all()\n"
    code += "print(json.dumps([found, safecache.stats()]))"
    for number in (1, 4711):
        place = tmp_path / f"elsewhere{number}"
        shutil.copytree(TESTS / "scenes", place / "scenes")
        paths = os.pathsep.join([str(place), str(SOURCE)])
        env = os.environ | home.environment | {"PYTHONHASHSEED": str(number), "PYTHONPATH": paths}
        run = subprocess.run([sys.executable, "-c", code], env=env, cwd=place, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-2000:]
    found, stats = json.loads(run.stdout.splitlines()[-1])
    assert all(hits[0] == 1 for hits in found.values()) and "stale" not in stats, (found, stats, run.stderr[-2000:])
