"""A sitecustomize that ``safecache run`` hides runs as if it were not hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import SOURCE

from .conftest import FAKE_TORCH


@pytest.fixture
def users(tmp_path):
    """A directory for PYTHONPATH with the user's own sitecustomize; each run of it adds a line to a file."""
    directory = tmp_path / "users"
    directory.mkdir()

    def write(code=""):
        record = f"open({str(tmp_path / 'runs')!r}, 'a').write('run\\n')\nMINE = True\n"
        (directory / "sitecustomize.py").write_text(record + code)
        return directory

    return write


def runs(tmp_path):
    return (tmp_path / "runs").read_text().splitlines() if (tmp_path / "runs").exists() else []


LOOK = """
import sys
from importlib.util import find_spec
module, ours = (sys.modules.get(name) for name in ("sitecustomize", "safecache"))
print(ours is not None and ours.is_active(), getattr(module, "MINE", None), module.__file__, module.__spec__.name)
"""


def python_of(directory, *more):
    # The launcher would run it too.
    return ["--", "env", f"PYTHONPATH={os.pathsep.join(map(str, [BOOTSTRAP, directory, FAKE_TORCH, SOURCE]))}", *more]


BOOTSTRAP = SOURCE / "safecache" / "bootstrap"


def test_hidden_sitecustomize_runs_once_and_is_the_one_that_is_imported(run_command, users, tmp_path):
    directory = users()
    said = run_command(*python_of(directory, sys.executable, "-c", LOOK + "import sitecustomize\n"))
    assert said.lines == [f"True True {directory / 'sitecustomize.py'} sitecustomize"], said.errors
    assert runs(tmp_path) == ["run"]


def test_pythonpath_of_the_caller_stays_behind_ours(run_command, users):
    directory = users()
    said = run_command("--", sys.executable, "-c", LOOK, pythonpath=(directory, FAKE_TORCH, SOURCE))
    assert said.lines == [f"True True {directory / 'sitecustomize.py'} sitecustomize"], said.errors


def test_safecache_is_active_before_the_hidden_sitecustomize_runs(run_command, users):
    directory = users("import sys\nprint('safecache' in sys.modules and sys.modules['safecache'].is_active())\n")
    said = run_command(*python_of(directory, sys.executable, "-c", "pass"))
    assert said.lines == ["True"], said.errors


@pytest.mark.parametrize("error", ["RuntimeError('broken')", "ImportError('broken', name='other')"])
def test_hidden_sitecustomize_that_raises_is_reported_as_python_does(run_command, users, error):
    directory = users(f"raise {error}\n")
    code = "import sys; print('went on', 'sitecustomize' in sys.modules)"
    stock = run_command("--", "env", f"PYTHONPATH={directory}", sys.executable, "-c", code)
    said = run_command(*python_of(directory, sys.executable, "-c", code))
    assert said.lines == stock.lines == ["went on False"]
    assert said.returncode == 0 and said.errors == stock.errors and "broken" in said.errors


def test_hidden_sitecustomize_that_exits_ends_the_program_as_python_does(run_command, users):
    directory = users("raise SystemExit(5)\n")
    said = run_command(*python_of(directory, sys.executable, "-c", "print('went on')"))
    assert said.lines == [] and said.returncode != 0


def test_hidden_sitecustomize_that_is_a_package_runs(run_command, users, tmp_path):
    directory = users()
    package = directory / "package" / "sitecustomize"
    package.mkdir(parents=True)
    (directory / "sitecustomize.py").rename(package / "__init__.py")
    (package / "part.py").write_text("")
    (package / "__init__.py").write_text((package / "__init__.py").read_text() + "from sitecustomize import part\n")
    said = run_command(*python_of(package.parent, sys.executable, "-c", LOOK))
    assert said.lines[0].startswith("True True "), said.errors
    assert runs(tmp_path) == ["run"]


@pytest.mark.skipif(find_spec("sitecustomize") is not None, reason="this Python has one, as Debian's")
def test_without_another_sitecustomize_ours_is_the_one(run_command):
    said = run_command("--", sys.executable, "-c", LOOK)
    assert said.lines == [f"True None {BOOTSTRAP / 'sitecustomize.py'} sitecustomize"], said.errors


def test_empty_directory_named_safecache_on_the_path_is_not_taken_for_the_package(run_command, tmp_path):
    """Such as a directory for its keys; Python takes it for a namespace package."""
    (tmp_path / "data" / "safecache").mkdir(parents=True)
    code = "import sys; print(getattr(sys.modules.get('safecache'), 'is_active', bool)())"
    said = run_command("--", sys.executable, "-c", code, pythonpath=(tmp_path / "data",), cwd=SOURCE)
    assert said.lines == ["True"], said.errors


def test_current_directory_that_pythonpath_names_stays_importable(run_command, tmp_path):
    """As ``PYTHONPATH=$PYTHONPATH:/more`` does where it was not set."""
    (tmp_path / "beside.py").write_text("print('imported')\n")
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text("import beside\n")
    pythonpath = os.pathsep.join(["", str(FAKE_TORCH), str(SOURCE)])
    stock = subprocess.run([sys.executable, program], env={"PYTHONPATH": pythonpath}, cwd=tmp_path, capture_output=True)
    assert stock.stdout == b"imported\n"
    said = run_command("--", sys.executable, str(program), pythonpath=("", FAKE_TORCH, SOURCE))
    assert said.lines == ["imported"], said.errors
