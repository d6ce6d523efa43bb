"""The arguments of ``safecache doctor``."""

from __future__ import annotations

import argparse

__all__ = ["COMMANDS", "add", "run"]

COMMANDS = ("doctor",)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of this command."""
    doctor = commands.add_parser("doctor", help="look for what keeps caches from working here, and say what to do")
    what = doctor.add_mutually_exclusive_group()
    what.add_argument(
        "--load", metavar="FILE", help="instead, say why a shared object does not load, without running it"
    )
    what.add_argument("--no-import", action="store_true", help="do not import torch: leave out what the hooks do")
    doctor.add_argument("--strict", action="store_true", help="exit with 1 for warnings too, not for errors alone")
    doctor.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from safecache.cli import doctor

    if arguments.load is not None:
        return doctor.show_load(arguments.load, strict=arguments.strict, as_json=arguments.json)
    return doctor.show(import_torch=not arguments.no_import, strict=arguments.strict, as_json=arguments.json)
