"""The arguments of the commands about kernels that have crashed Triton's compiler."""

from __future__ import annotations

import argparse

__all__ = ["COMMANDS", "add"]

COMMANDS = ("ls", "forget")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of these commands."""
    directory = "a cache directory; by default those that torch and Triton use under this environment"
    ls = commands.add_parser("ls", help="list the kernels that have crashed Triton's compiler, with their reports")
    ls.add_argument("--crashed", action="store_true", required=True, help="what is listed")
    ls.add_argument("directories", nargs="*", metavar="DIR", help=directory)
    ls.add_argument("--json", action="store_true", help="print JSON")

    forget = commands.add_parser("forget", help="have kernels compiled again that have crashed Triton's compiler")
    which = forget.add_mutually_exclusive_group(required=True)
    which.add_argument("hash", nargs="?", metavar="HASH", help="as `safecache ls --crashed` shows it, or more of it")
    which.add_argument("--all", action="store_true", help="all of them")
    forget.add_argument("--in", dest="directories", action="append", metavar="DIR", help=directory)
