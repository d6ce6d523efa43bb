"""No compiler, or no Python.h: the error of the same type says which, for what, and what to install."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import needs_root
from scenes import load_scenes

from faults.users import as_user
from safecache.load_errors import ExplainedProcessError

STOCK_ERRORS = {
    "triton": {"compiler": "RuntimeError", "headers": "CalledProcessError"},
    "inductor": {"compiler": "InvalidCxxCompiler", "headers": "CppCompileError"},
    "extension": {"compiler": "RuntimeError", "headers": "RuntimeError"},
}
PURPOSE = {"triton": "Triton compiles", "inductor": "Inductor compiles", "extension": "the extension is compiled"}


@pytest.fixture(params=STOCK_ERRORS)
def site(request):
    if request.param == "triton":
        pytest.importorskip("triton")
    return request.param


def with_path(*directories):
    return {"PATH": ":".join(map(str, directories))}


@pytest.fixture
def run(home, site):
    """Builds what the site builds, where ninja is found and the extension has a directory of its own."""
    ninja = Path(sysconfig.get_path("scripts"))
    environment = {"TORCH_EXTENSIONS_DIR": str(home.base / "extensions")} | with_path(ninja, "/usr/bin", "/bin")

    def run(env=None, **kwargs):
        return home.run(load_scenes.build, site=site, env=environment | (env or {}), **kwargs)

    return run


@pytest.fixture
def without_compiler(home):
    """A PATH with all that a build starts, but no compiler."""
    tools = home.base / "tools"
    tools.mkdir()
    path = ":".join([sysconfig.get_path("scripts"), "/usr/bin", "/bin"])
    for name in ("sh", "which", "ninja"):
        (tools / name).symlink_to(shutil.which(name, path=path))
    return with_path(tools)


def test_missing_compiler_is_named_with_its_purpose_and_package(run, site, without_compiler):
    stock = run(without_compiler, stock=True)
    assert stock.error == STOCK_ERRORS[site]["compiler"], stock
    answer = run(without_compiler)
    assert answer.error == stock.error and answer.messages[1] == stock.messages[0], answer
    said = answer.messages[0].removeprefix(stock.messages[0])
    language = {"triton": "C compiler", "inductor": "C++ compiler", "extension": "c++"}[site]
    assert said.startswith(f" safecache: there is no {language}, and {PURPOSE[site]}"), said
    variable = "CC" if site == "triton" else "CXX"
    assert said.endswith(f"(or let {variable} name one)."), said


@needs_root
def test_missing_header_is_named_with_its_purpose_and_package(run, site):
    stock = run(headers=False, stock=True)
    assert stock.error == STOCK_ERRORS[site]["headers"], stock
    answer = run(headers=False)
    # Triton's is an error that has no text of its own; who catches that type catches ours.
    assert answer.error == ("ExplainedProcessError" if site == "triton" else stock.error), answer
    assert answer.errors[1] == stock.error, answer
    assert "does not find Python.h, the headers of Python 3." in answer.messages[0], answer
    assert PURPOSE[site] in answer.messages[0] and answer.messages[0].count("safecache: ") == 1, answer


def test_error_in_a_source_is_raised_untouched(run):
    stock = run(broken=True, stock=True)
    answer = run(broken=True)
    assert stock.error and answer.errors == stock.errors, answer
    assert not any("safecache: " in text for text in answer.messages), answer


def test_compiler_that_cc_names_and_is_not_there(home):
    pytest.importorskip("triton")
    environment = {"CC": "/nowhere/cc"}
    stock = home.run(load_scenes.build, site="triton", env=environment, stock=True)
    answer = home.run(load_scenes.build, site="triton", env=environment)
    assert stock.error == answer.error == "FileNotFoundError", answer
    assert "CC names /nowhere/cc, which is not there, and Triton compiles" in answer.messages[0], answer


def test_explained_error_survives_a_workers_pickle():
    error = ExplainedProcessError(1, ["cc", "x.c"])
    error.explanation = "what to do"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and isinstance(again, subprocess.CalledProcessError)
    assert (again.returncode, again.cmd) == (1, ["cc", "x.c"]) and str(again).endswith("what to do")


IMPORT = """
import sys
if sys.argv[1] == "safecache":
    import safecache
import torch._inductor.codecache
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
print(default_cache_dir())
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv(1)")
def test_user_without_a_passwd_entry(home, zygote):
    home.base.chmod(0o777)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(home.base), "PYTHONPATH": str(Path(__file__).parents[2])}

    def ask(who):
        command = [*as_user(43210), sys.executable, "-c", IMPORT, who]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    # Newer torch by itself finds the name that is expected here.
    if tuple(map(int, zygote.torch.split(".")[:2])) < (2, 13):
        done = ask("stock")
        assert done.returncode == 1 and "KeyError: 'getpwuid(): uid not found: 43210'" in done.stderr, done
    done = ask("safecache")
    assert done.stdout.splitlines()[-1:] == [f"{home.base}/torchinductor_uid_43210"], done


@pytest.mark.parametrize("stock", [True, False], ids=["stock", "safecache"])
def test_compiler_that_is_killed_is_started_once_more(home, stock):
    tools, compiler = home.base / "killed", shutil.which("g++")
    tools.mkdir()
    once = f"case $* in *-shared*) [ -e {tools}/once ] || {{ touch {tools}/once; kill -9 $$; }};; esac"
    (tools / "g++").write_text(f'#!/bin/sh\n{once}\nexec {compiler} "$@"\n')
    (tools / "g++").chmod(0o755)
    answer = home.run(stock=stock, env=with_path(tools, "/usr/bin", "/bin"))
    assert (tools / "once").exists()
    if stock:
        assert "CppCompileError" in answer.errors, answer
    else:
        [line] = answer.warnings
        assert answer.ok and "ended by a signal (SIGKILL)" in line and "once more" in line, answer
