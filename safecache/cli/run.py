"""``safecache run -- CMD``: run CMD and every Python process that it starts with safecache active."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from safecache.cli import NotRunError, UsageError
from safecache.settings import config

__all__ = ["add", "environment_for_children", "run"]

_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap")


def environment_for_children() -> dict[str, str]:
    """The environment that activates safecache: our sitecustomize first on PYTHONPATH."""
    config.name_run()
    environment = config.child_environment()
    before = environment.get("PYTHONPATH", "")
    # An empty entry means the current directory, but an empty variable means none.
    entries = [entry for entry in before.split(os.pathsep) if entry != _BOOTSTRAP] if before else []
    environment["PYTHONPATH"] = os.pathsep.join([_BOOTSTRAP, *entries])
    return environment


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...", help="the command and its arguments")


def run(arguments: argparse.Namespace) -> NoReturn:
    """Become the command. Raises UsageError if none is given, and NotRunError."""
    command = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not command:
        raise UsageError("no command given: safecache run -- CMD...")
    environment = environment_for_children()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise NotRunError(command[0], error) from None
