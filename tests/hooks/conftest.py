"""Fresh interpreters that see a torch of a few lines: the real one takes seconds to import."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import SOURCE, python

FAKE_TORCH = Path(__file__).parent / "fake_torch"


class Said:
    """What an interpreter wrote."""

    def __init__(self, done) -> None:
        self.returncode = done.returncode
        self.lines = done.stdout.splitlines()
        self.errors = done.stderr
        self.warnings = [line for line in done.stderr.splitlines() if line.startswith("safecache: ")]


@pytest.fixture
def fake_environment(tmp_path):
    """Where a fresh interpreter keeps its keys and caches; its own warnings are errors too."""
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def fake(fake_environment):
    """Run code in a fresh interpreter with the fake torch and the names of probe.py, until it ends well.

    It may write nothing to stderr, unless ``loud``.
    """

    def run(code, *, loud=False, timeout=60, **environment):
        done = python(
            "from probe import *\n" + textwrap.dedent(code),
            path=FAKE_TORCH,
            env=fake_environment | environment,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert loud or not done.stderr, done.stderr
        return Said(done)

    return run


@pytest.fixture
def command_line(fake_environment, tmp_path):
    """``python -m safecache ARGUMENTS``, with PYTHONPATH as given; by default the fake torch and the sources."""

    def run(*arguments, pythonpath=(FAKE_TORCH, SOURCE), cwd=tmp_path, **environment):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SAFECACHE", "PYTHON"))}
        environment = inherited | fake_environment | environment
        if pythonpath:
            environment["PYTHONPATH"] = os.pathsep.join(map(str, pythonpath))
        command = [sys.executable, "-m", "safecache", *arguments]
        return Said(subprocess.run(command, env=environment, cwd=cwd, text=True, capture_output=True, timeout=240))

    return run


@pytest.fixture
def run_command(command_line):
    """``python -m safecache run ARGUMENTS``."""
    return functools.partial(command_line, "run")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A directory with the metadata that a wheel of this project has."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 is the first that reads pyproject.toml")
    groups = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items()) for group, names in groups.items()]
    directory = tmp_path_factory.mktemp("installed")
    (directory / "safecache-0.dist-info").mkdir()
    (directory / "safecache-0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: safecache\nVersion: 0\n"
    )
    (directory / "safecache-0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    return directory
