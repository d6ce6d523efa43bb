"""The arguments of the command about kernels that have crashed Triton's compiler; `ls --crashed` lists them."""

from __future__ import annotations

import argparse

from safecache.cli.listing_arguments import DIRECTORY_HELP

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("forget",)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add its parser."""
    forget = commands.add_parser("forget", help="have kernels compiled again that have crashed Triton's compiler")
    which = forget.add_mutually_exclusive_group(required=True)
    which.add_argument("hash", nargs="?", metavar="HASH", help="as `safecache ls --crashed` shows it, or more of it")
    which.add_argument("--all", action="store_true", help="all of them")
    forget.add_argument("--in", dest="directories", action="append", metavar="DIR", help=DIRECTORY_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Run it and return its exit code. Raises SafecacheError or OSError."""
    from safecache.cli import crashes

    return crashes.run(arguments)
