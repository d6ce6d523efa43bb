"""Keys and settings of its own for every test, and hypothesis without deadlines."""

from __future__ import annotations

import os
from types import SimpleNamespace

import hypothesis
import pytest

from safecache import config, events, keyring
from safecache.cli.main import main

# A deadline is a timing assertion; a database would leave files in the checkout.
hypothesis.settings.register_profile("safecache", deadline=None, database=None)
hypothesis.settings.load_profile("safecache")


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("SAFECACHE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(config, "_current", None)
    keyring.reset()
    events.reset()
    umask = os.umask(0o022)  # the files that tests make are private, whatever the caller's umask
    yield
    os.umask(umask)
    keyring.reset()
    events.reset()


@pytest.fixture
def settings(monkeypatch):
    """Set variables and have them read."""

    def use(**variables: object) -> config.Config:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        return config.reload()

    return use


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
