"""A home for what fresh processes compile in isolation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import name_of
from helpers.in_process import isolated, run, settings

from crashes import crash_scenes
from crashes.crash_names import DEADLY

__all__ = ["isolated", "run", "settings"]

# What crashes is Triton's compiler.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["test_*.py"]
HERE = Path(__file__).parent
SOURCE = HERE.parent.parent


class Home:
    """One test's cache of Triton's, and keys; each run() is a fresh process."""

    def __init__(self, base):
        self.base = base
        self.cache = base / "triton"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SAFECACHE", "TRITON"))
        } | {
            "TRITON_CACHE_DIR": str(self.cache),
            "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
            "TRITON_DEFAULT_FP_FUSION": "1",  # or Triton 3.9 warns
            "XDG_CONFIG_HOME": str(base / "config"),
            "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, HERE, HERE.parent))),
            "SAFECACHE_ISOLATE": "1",
        }

    def run(self, scene, *, env=None, **arguments):
        done = subprocess.run(
            [sys.executable, str(HERE / "process.py"), json.dumps({"scene": name_of(scene), "arguments": arguments})],
            env=self.environment | (env or {}),
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, (done.returncode, done.stderr[-4000:])
        return SimpleNamespace(**json.loads(done.stdout), stderr=done.stderr)

    def compile(self, *names, **how):
        return self.run(crash_scenes.compile_each, names=names, **how)

    @property
    def reports(self):
        return sorted((self.cache / ".safecache" / "crashes").glob("*"))

    @property
    def notes(self):
        return sorted((self.cache / ".safecache" / "known_bad").glob("*"))


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


SECRET = "hunter2-of-the-environment"
FAULTY = {"wrong-instruction": "PTXASError", "wrong-types": "CompilationError"}


@pytest.fixture(scope="session")
def crashed(tmp_path_factory):
    """A home where one process has compiled what crashes, by the name of the kernel, and what does not."""
    home = Home(tmp_path_factory.mktemp("crashed"))
    home.answer = home.compile(*DEADLY, "recovered", "empty-module", *FAULTY, "sound", env={"API_TOKEN": SECRET})
    home.crashes = {each["kernel"]: each for each in home.answer.result if each.get("how")}
    return home
