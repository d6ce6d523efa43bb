"""Every command works in an environment without Triton, such as that of torch's builds for CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from conftest import NEEDS_TORCH, SOURCE

from safecache.cli.main import _COMMANDS

pytestmark = NEEDS_TORCH
# What each command does in a cache that the tests have filled; of the others, which start programs or take a remote or
# another user's key, only the help.
CALLS = [
    *(
        "ls",
        "ls --crashed",
        "show {entry}",
        "du",
        "stats",
        "explain",
        "report",
        "keys",
        "verify",
        "help",
        "help settings",
    ),
    *("quarantine list", "forget --all", "gc --dry-run", "status", "status --sinks", "doctor"),
    *("pack -o {base}/one.safecache", "diff {base}/one.safecache {base}/one.safecache", "preflight"),
]
CALL_ALL = """
import contextlib, io, json, sys
from safecache.cli.main import main
from safecache.patching import sinks
from safecache.signing import provenance

# In place of a scan of torch for 20 s, which tests/patching/test_sinks.py makes.
release = sinks.parse_release(provenance.torch_version())
sinks.scan = lambda packages, distribution: sorted(sinks.list_sinks(distribution, release))
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = repr(error)
    print(json.dumps([words, code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def python_without_triton(tmp_path_factory):
    """A virtual environment with everything that is installed here but Triton."""
    place = tmp_path_factory.mktemp("without") / "venv"
    venv.create(place, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for item in Path(folder).iterdir():
            if not item.name.startswith("triton") and not (packages / item.name).exists():
                (packages / item.name).symlink_to(item)
    return place / "bin" / "python"


@pytest.fixture
def call(python_without_triton, warm):
    """Runs commands, lists of words, in one process; returns (exit code or exception, stdout, stderr) of each."""

    def call(commands):
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")} | warm.environment
        command = [str(python_without_triton), "-c", CALL_ALL]
        done = subprocess.run(
            command,
            input=json.dumps(commands),
            env=environment | {"PYTHONPATH": str(SOURCE)},
            cwd=warm.base,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line)[1:] for line in done.stdout.splitlines()]

    return call


def test_every_command_has_its_help(call):
    commands = [[command, "--help"] for command in _COMMANDS]
    for command, (code, said, _) in zip(commands, call(commands), strict=True):
        assert code == 0 and said.startswith("usage: "), (command, code)


def test_commands_work(call, warm):
    words = {"base": warm.base, "entry": warm.aot_entries[0].parent.name}
    commands = [[word.format(**words) for word in command.split()] for command in CALLS]
    found = dict(zip(CALLS, call(commands), strict=True))
    # The preflight finds torch at another path than that which the entries were compiled with.
    assert [(command, said) for command, said in found.items() if said[0] != (command == "preflight")] == []
    assert "triton is not installed" in found["status"][1] and "ModuleNotFoundError" not in found["status"][1]
    assert "no-triton" in found["doctor"][1] and "hook-standing-down" not in found["doctor"][1]
    assert (warm.base / "safecache-report.html").exists()
