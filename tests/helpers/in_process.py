"""Keys and settings of its own for every test, and hypothesis without deadlines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import hypothesis
import pytest

import safecache
from helpers.caches import Cache
from helpers.fresh import forget_levels
from safecache import history
from safecache.cli.main import main
from safecache.settings import config
from safecache.tiers import fallback
from safecache.upkeep import eviction

# A deadline is a timing assertion; a database would leave files in the checkout.
hypothesis.settings.register_profile("safecache", deadline=None, database=None)
hypothesis.settings.load_profile("safecache")


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("SAFECACHE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(config, "_current", None)
    monkeypatch.setattr(history, "_write_soon", lambda: None)  # it would write after the test
    safecache.reset()
    umask = os.umask(0o022)  # the files that tests make are private, whatever the caller's umask
    yield
    os.umask(umask)
    safecache.reset()


@pytest.fixture
def settings(monkeypatch):
    """Set variables and have them read."""

    def use(**variables: object) -> config.Config:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        return config.reload()

    return use


@pytest.fixture
def shared(tmp_path, monkeypatch, settings):
    """A cache that is to have a local tier before it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "shared"))
    monkeypatch.setenv("_SAFECACHE_REDIRECTED", "")
    forget_levels()
    settings(SAFECACHE_LOCAL=tmp_path / "local")
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def local(shared):
    """The local tier, in use."""
    fallback.ensure_cache_directory(lambda: str(shared))
    return config.cache_directory()


@pytest.fixture
def run(capsys):
    """Run a command; its exit code, output and errors."""

    def run(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err, lines=said.out.splitlines())

    return run


@pytest.fixture
def cache(tmp_path):
    """An empty one, as of now."""
    return Cache(tmp_path / "cache", time.time())


@pytest.fixture
def listed(run, cache):
    """The rows of a list as JSON, by their kind if there is one of each."""

    def ask(*arguments):
        said = run("ls", cache.root, "--json", *arguments)
        assert said.code == 0, said.err
        return json.loads(said.out)

    return ask


@pytest.fixture
def ask(run, cache):
    """Run `quarantine` with an action on this cache; what it says as JSON."""

    def ask(*arguments, code=0):
        said = run("quarantine", *arguments, "--in", cache.root, "--json")
        assert said.code == code, said.err
        return json.loads(said.out) if said.out else said.err

    return ask


@pytest.fixture(autouse=True)
def no_jobs(monkeypatch):
    """Others on this machine may run torch."""
    monkeypatch.setattr(eviction, "find_running_torch", lambda found: None)


@pytest.fixture
def holding():
    """Have another process lock a file, or a directory, for a block."""

    return partial(_meanwhile, "import fcntl, os; fcntl.flock(os.open({!r}, os.O_RDONLY), fcntl.LOCK_EX)")


@pytest.fixture
def mapping():
    """Have another process map a file for a block."""
    return partial(
        _meanwhile, "import mmap; f = open({!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)"
    )


@contextmanager
def _meanwhile(code, path):
    command = [sys.executable, "-S", "-c", f"{code.format(str(path))}; print(1, flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "1\n"
        yield process.pid
        process.communicate("\n")
