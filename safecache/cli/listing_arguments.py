"""The arguments of the commands that tell what lies in caches, and of those about quarantine."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from safecache.settings import units
from safecache.store.groups import KINDS

__all__ = ["COMMANDS", "DIRECTORY_HELP", "add", "run"]

COMMANDS = ("ls", "show", "quarantine")
DIRECTORY_HELP = "a cache directory; by default those that torch and Triton use under this environment"
_ITEM_HELP = "as `safecache quarantine` shows it, or the beginning of it that no other has"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of these commands."""
    ls = commands.add_parser("ls", help="list what lies in caches: kernels and graphs, their size, age, build, signer")
    ls.add_argument("directories", nargs="*", metavar="DIR", help=DIRECTORY_HELP)
    ls.add_argument(
        "--kind", action="append", choices=(*KINDS, "all"), help="of this kind, or these; all that compiles use"
    )
    ls.add_argument("--sort", choices=("size", "age", "used", "name"), default="used", help="by default, used last")
    ls.add_argument("--limit", type=_count, metavar="N", help="the first N")
    ls.add_argument("--crashed", action="store_true", help="the kernels that have crashed Triton's compiler, instead")
    ls.add_argument("--json", action="store_true", help="print JSON")

    show = commands.add_parser("show", help="tell all about one of them: its build, files, signer, and if it is used")
    show.add_argument(
        "name", metavar="NAME|KEY|PATH", help="of a kernel or function; a key, or the beginning of it; or a file of it"
    )
    _add_places(show)

    quarantine = commands.add_parser("quarantine", help="list, show, restore or remove what was moved aside")
    _add_places(quarantine)
    actions = quarantine.add_subparsers(dest="action", metavar="ACTION")
    _add_places(actions.add_parser("list", help="what there is, from where and why; the default"), again=True)
    for action, help in (("show", "what it is, and if a load would take it now"), ("restore", "put it back, if so")):
        parser = actions.add_parser(action, help=help)
        parser.add_argument("items", nargs=1, metavar="ITEM", help=_ITEM_HELP)
        _add_places(parser, again=True)
    rm = actions.add_parser("rm", help="remove it")
    which = rm.add_mutually_exclusive_group(required=True)
    which.add_argument("items", nargs="*", default=[], metavar="ITEM", help=_ITEM_HELP)
    which.add_argument("--all", action="store_true", help="all of it")
    _add_places(rm, again=True)


def _add_places(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """``again``: after an action what was said before it stands."""
    directories = parser.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)
    as_json = parser.add_argument("--json", action="store_true", help="print JSON")
    if again:
        directories.default = as_json.default = argparse.SUPPRESS


def _count(text: str) -> int:
    try:
        return units.parse_count(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1") from None


def run(arguments: argparse.Namespace) -> int:
    """Run one of these commands and return its exit code. Raises SafecacheError or OSError."""
    command = "crashes" if arguments.command == "ls" and arguments.crashed else arguments.command
    try:
        code: int = importlib.import_module(f"safecache.cli.{command}").run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # `| head` has seen enough. What is left in the buffer would fail again as the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
