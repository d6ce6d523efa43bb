"""Copies of the installed torch and Triton with source patches applied, shared by the workers of a test run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from conftest import SOURCE, Home, Zygote, isolated_environment, python
from filelock import FileLock

from patches import triton_processes

PACKAGES = ("torch", "triton")
# One process serves the tests of all of these.
MADE_BY_HAND = ("noexec-guidance", "picklable-launchers", "save-bypass")


def installed(package: str) -> Path | None:
    """Where this Python has it; triton is not there with a torch for the CPU alone."""
    spec = PathFinder.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


needs_triton = pytest.mark.skipif(installed("triton") is None, reason="needs Triton")


def patches_of(package: str) -> dict[str, Path]:
    """Those of the installed release, by name."""
    release = ".".join(importlib.metadata.version(package).split(".")[:2])
    return {path.stem: path for path in (SOURCE / "patches" / f"{package}-{release}").glob("*.patch")}


def apply(site: Path, *names: str, tool: Sequence[str] = ("git", "apply", "-p1")) -> None:
    """As patches/README.md says."""
    for package in filter(installed, PACKAGES):
        for name, path in patches_of(package).items():
            if name in names:
                environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(site.parent)}
                command = [*tool, str(path)] if tool[0] == "git" else [*tool, f"--input={path}"]
                done = subprocess.run(command, cwd=site, env=environment, text=True, capture_output=True)
                assert done.returncode == 0, (name, done.stdout, done.stderr)


def share(source: str, destination: str) -> None:
    """A copy of what is Python's, else a link to it. (Another name for a file changes what the kernel says of it.)"""
    if source.endswith((".py", ".pyc")):
        shutil.copy2(source, destination)
    else:
        os.symlink(source, destination)


def copy_packages(site: Path) -> None:
    """Pristine torch, and Triton if there is one, in the directory; what holds no Python there is a link."""
    for package in filter(None, map(installed, PACKAGES)):
        shutil.copytree(package, site / package.name, copy_function=share, symlinks=True)


class Site:
    """A directory of packages to put first on PYTHONPATH, in which torch and Triton are patched."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def python(self, code: str, home: Path, *, env: dict[str, str] | None = None, importable: bool = True, **kwargs):
        """Run ``code`` in a process with these packages, its caches below ``home``, that finds this checkout after them.

        It does not import safecache by itself, and cannot if that is not to be ``importable``.
        """
        if not importable:
            (home / "hidden").mkdir(exist_ok=True)
            for name in ("safecache", "safecache_entry"):
                (home / "hidden" / f"{name}.py").write_text("raise ImportError('not installed')\n")
        environment = isolated_environment(home) | {"TMPDIR": str(home), "OMP_NUM_THREADS": "1"}
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCH_WARM_POOL": "0"}
        # Which takes longer than all else in such a process.
        environment |= {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"} | (env or {})
        first = self.path if importable else f"{home / 'hidden'}{os.pathsep}{self.path}"
        # Not in the checkout, which Python would look into first.
        return python(code, env=environment, path=first, **{"cwd": home} | kwargs)

    def said(self, code: str, home: Path, **kwargs):
        """What the process printed last, as JSON; it must end well."""
        done = self.python(code, home, **kwargs)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory):
    """One for all workers of this run, which the last one to come through here does not know to be the last."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def patched(shared_directory):
    """patched("save-bypass", …): a Site with these patches, made once; patched(): the pristine one."""

    def make(*names: str) -> Site:
        name = "+".join(["site", *sorted(names)])
        site = shared_directory / name
        with FileLock(shared_directory / f"{name}.lock"):
            if not site.is_dir():
                unfinished = shared_directory / f"{name}.unfinished"
                copy_packages(unfinished)
                apply(unfinished, *names)
                unfinished.rename(site)
        return Site(site)

    return make


@pytest.fixture(scope="session")
def homes_with(patched, session_directory):
    """homes_with("save-bypass")(): a Home whose scenes run on torch with this patch, and without safecache."""
    stages: dict[tuple[str, ...], Zygote] = {}

    def homes(*names: str):
        def make() -> Home:
            if names not in stages:
                base = Path(tempfile.mkdtemp(dir=session_directory))
                stages[names] = Zygote(base, patched(*names).path)
            return Home(Path(tempfile.mkdtemp(dir=session_directory)), stages[names])

        return make

    yield homes
    for stage in stages.values():
        stage.close()


@pytest.fixture
def home(homes_with):
    """Where torch has the patches that were made by hand."""
    return homes_with(*MADE_BY_HAND)()


@pytest.fixture
def stock(homes_with):
    """Where it is pristine."""
    return homes_with()()


@pytest.fixture(scope="session")
def triton_run(patched):
    """triton_run(names, home, requests): what comes of these on sources with the patches of these names."""
    return lambda names, home, requests: triton_processes.run(patched(*names), home, requests)
