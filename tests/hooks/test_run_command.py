"""``safecache run -- CMD``: safecache is active in CMD and its Python children, and nothing else is different there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import SOURCE

from .conftest import FAKE_TORCH

ASK = "import sys; print('safecache' in sys.modules and sys.modules['safecache'].is_active())"
IMPORT_AND_ASK = "from probe import *; import_all(); print(sorted(set(states().values())))"


def test_command_is_active_without_importing_safecache_with_every_hook(run_command):
    said = run_command("--", sys.executable, "-c", f"{ASK}; {IMPORT_AND_ASK}")
    assert (said.returncode, said.lines, said.errors) == (0, ["True", "['active']"], "")


def test_command_needs_no_dashes(run_command):
    assert run_command(sys.executable, "-c", ASK).lines == ["True"]


@pytest.mark.parametrize("shell", [False, True])
def test_python_grandchild_is_active(run_command, shell):
    if shell:
        command = ["sh", "-c", f'"{sys.executable}" -c "$1"', "sh", IMPORT_AND_ASK]
    else:
        outer = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
        command = [sys.executable, "-c", outer, IMPORT_AND_ASK]
    said = run_command("--", *command)
    assert said.lines == ["['active']"], said.errors


def test_run_inside_run_is_active_and_names_its_directory_once(run_command):
    inner = [sys.executable, "-m", "safecache", "run", "--", sys.executable, "-c"]
    code = "import os; path = os.environ['PYTHONPATH'].split(os.pathsep); print(len(path), len(set(path)))"
    said = run_command("--", *inner, f"{ASK}; {code}")
    assert said.lines == ["True", "3 3"], said.errors


def test_arguments_and_environment_arrive_unchanged(run_command):
    code = "import os, sys; print(sys.argv[1:], os.environ['MINE'], os.getcwd())"
    said = run_command("--", sys.executable, "-c", code, "--", "-x", "a b", "--help", MINE="yes")
    assert said.lines[0].startswith("['--', '-x', 'a b', '--help'] yes "), said.errors


@pytest.mark.parametrize("code", [3, 255])
def test_exit_code_is_that_of_the_command(run_command, code):
    assert run_command("--", sys.executable, "-c", f"raise SystemExit({code})").returncode == code


def test_signal_reaches_the_caller(run_command):
    assert run_command("--", "sh", "-c", "kill -TERM $$").returncode == -15


def test_command_that_is_not_found_exits_127(run_command):
    said = run_command("--", "no-such-command-at-all")
    assert (said.returncode, said.errors) == (127, "safecache run: no-such-command-at-all: not found\n")


def test_command_that_cannot_be_run_exits_126(run_command, tmp_path):
    (tmp_path / "data").write_text("no program")
    said = run_command("--", str(tmp_path / "data"))
    assert said.returncode == 126 and said.errors == f"safecache run: {tmp_path / 'data'}: Permission denied\n"


@pytest.mark.parametrize("arguments", [[], ["--"]])
def test_no_command_is_a_usage_error(run_command, arguments):
    said = run_command(*arguments)
    assert said.returncode == 2 and said.errors == "safecache run: no command given: safecache run -- CMD...\n"


def test_bad_setting_is_one_line_and_the_command_does_not_run(run_command):
    said = run_command("--", sys.executable, "-c", "print('ran')", SAFECACHE_TRUST="nobody")
    assert (said.returncode, said.lines) == (78, [])
    assert said.errors == "safecache: SAFECACHE_TRUST='nobody' is not allowed: use signed, private or shared\n"


def test_bad_setting_that_arises_on_the_way_is_one_line_and_the_program_runs(run_command):
    said = run_command("--", "env", "SAFECACHE_TRUST=nobody", sys.executable, "-c", ASK)
    assert (said.returncode, said.lines) == (0, ["False"])
    assert said.errors.count("\n") == 1 and "SAFECACHE_TRUST='nobody'" in said.errors


def test_switched_off_command_is_stock(run_command):
    said = run_command("--", sys.executable, "-c", f"{ASK}; {IMPORT_AND_ASK}", SAFECACHE="0")
    assert said.lines == ["False", "['inactive']"], said.errors


def elsewhere(directory, code):
    """Python in a directory other than the launcher's."""
    return ["sh", "-c", 'cd "$0" && exec "$1" -c "$2"', str(directory), sys.executable, code]


def test_source_tree_that_only_the_launcher_finds_is_enough(run_command, tmp_path):
    """Nothing of what lies beside the package becomes importable."""
    beside = (
        f"print({str(SOURCE)!r} in map(__import__('os').path.abspath, sys.path), "
        "__import__('importlib.util').util.find_spec('tests'), 'torch' in sys.modules)"
    )
    code = f"{ASK}; import safecache, safecache.patching.patching; {beside}"
    # An editable install has the tree on its path by itself; then it is to be there as often as without us.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    alone = subprocess.run(
        elsewhere(tmp_path, f"import sys; {beside}"), env=environment, capture_output=True, text=True, check=True
    )
    said = run_command("--", *elsewhere(tmp_path, code), pythonpath=(), cwd=SOURCE)
    assert said.lines == ["True", alone.stdout.strip()], said.errors


def test_hooks_work_where_only_the_launcher_finds_the_source_tree(run_command, tmp_path):
    said = run_command("--", *elsewhere(tmp_path, IMPORT_AND_ASK), pythonpath=(FAKE_TORCH,), cwd=SOURCE)
    assert said.lines == ["['active']"], said.errors


@pytest.mark.parametrize("program", ["json.tool", "asking_tool"])
def test_other_program_with_safecache_as_an_argument_is_active(run_command, tmp_path, program):
    (tmp_path / "asking_tool.py").write_text(ASK)
    (tmp_path / "safecache").write_text("{}")
    said = run_command("--", sys.executable, "-m", program, "safecache", pythonpath=(tmp_path, FAKE_TORCH, SOURCE))
    assert said.lines == (["{}"] if program == "json.tool" else ["True"]), said.errors


def test_package_ships_nothing_that_runs_at_every_start_of_python():
    listed = subprocess.run(["git", "ls-files"], cwd=SOURCE, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    assert not [name for name in listed.stdout.splitlines() if name.endswith(".pth")]
    hidden = [os.path.dirname(name) for name in listed.stdout.splitlines() if name.endswith("sitecustomize.py")]
    assert "safecache/bootstrap" in hidden and "" not in hidden and "safecache" not in hidden
